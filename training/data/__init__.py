"""Reads data sets by name, and users' files, as a labelled graph with a split.

Does not belong here: models and optimisation (`fit`).
"""
