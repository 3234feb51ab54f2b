"""Publishes a trained model, compares the new version with the live one, and activates it.

Does not belong here: optimisation (`fit`) and the report page (`report`).
"""
