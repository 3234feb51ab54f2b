"""`sgf-graph`: the live graph at a terminal. Applies files of operations, shows the state of the graph, compacts, exports.

Belongs here: what the command reads, sends and prints. How a graph changes belongs to `model_store.live_graph`.
"""
