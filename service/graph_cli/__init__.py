"""`sgf-graph`: the live graph from a terminal: applies files of operations, shows its state, compacts and exports it.

Belongs here: what the command reads, sends and prints. How a graph changes belongs to `model_store.live_graph`.
"""
