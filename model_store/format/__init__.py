"""The files of a snapshot: names, layouts, checks, readers and writers of single files.

Belongs here: docs/snapshot_format.md as code. Does not belong here: whole versions (`publish`, `versions`).
"""
