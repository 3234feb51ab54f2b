"""The `sgf-train` command: typed options, one module per command, run events, and the demo's check of a new node.

Does not belong here: anything that a program would call without a terminal (`fit`, `release`).
"""
