"""The mathematics of a request: answers for known and for new nodes, from stored states and sums.

Belongs here: work that does not grow with the number of nodes of the graph, on numpy alone on a CPU.
Does not belong here: gradients (`torch_model`) and passes over all nodes (`full_graph`).
"""
