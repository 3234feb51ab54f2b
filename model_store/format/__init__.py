"""The files of a snapshot as docs/snapshot_format.md specifies them: names, shapes, readers, writers and checks.

Each module handles one kind of file. Writing and numbering whole versions belongs in `publish` and `versions`.
"""
