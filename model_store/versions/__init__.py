"""The versions of one model: their numbers, the live version and its history, locks, durable writes and pruning.

This folder handles whole version folders. The content of a snapshot belongs in `format`.
"""
