"""Snapshots on disk: format, write, verify, open, publish, activate, roll back, prune. Imports sgformer only."""
