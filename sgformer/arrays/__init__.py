"""Array operations under common names, for numpy, for torch, and for recording an ONNX graph.

Belongs here: what these libraries spell differently, and matrix products whose rows are bitwise independent of the batch.
Does not belong here: anything that depends on the model.
"""
