"""Array operations for numpy and torch, and matrix products whose result does not depend on the batch.

Belongs here: what both libraries can do, under one name. Does not belong here: anything that knows the model.
"""
