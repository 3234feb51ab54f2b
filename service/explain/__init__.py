"""The routes /explain, /similar and /map, whose answers the compute process computes.

Belongs here: their questions, and the JSON of their answers. Does not belong here: the mathematics (`sgformer.explain`).
"""
