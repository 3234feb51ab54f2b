"""Trains a model on a labelled graph: settings, batches, losses, checkpoints, warm starts, search for settings.

Does not belong here: reading data (`data`), and publishing the result (`release`).
"""
