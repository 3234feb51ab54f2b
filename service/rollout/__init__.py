"""Which version a worker serves, how it changes to another version without losing a request, and automatic roll-back.

Does not belong here: loading a version (`engines`) and the record of versions (`model_store`).
"""
