"""The versions of a model: numbering, the live one, history, locks, durable writes and pruning.

Belongs here: folders and their states. Does not belong here: the content of a snapshot (`format`).
"""
