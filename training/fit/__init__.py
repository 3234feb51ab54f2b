"""Training a model on a labelled graph: settings, batches, losses, checkpoints, search.

Does not belong here: what becomes of the result (`release`).
"""
