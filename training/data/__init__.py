"""From files or names to a labelled graph with a split: data sets, users' files, checks.

Does not belong here: models and optimisation (`fit`).
"""
