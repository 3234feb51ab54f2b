"""The roll-out of a version to a worker, without losing a request, and the automatic roll-back.

Does not belong here: loading a version (`engines`) and the record of versions (`model_store`).
"""
