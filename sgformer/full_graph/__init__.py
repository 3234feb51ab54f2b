"""The forward pass over all nodes of a graph, in streamed passes.

Belongs here: work that is proportional to the graph. Does not belong here: work per request (`request_time`).
"""
