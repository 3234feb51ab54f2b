"""The forward pass over all nodes of a graph, streamed so that its states may exceed memory.

Belongs here: work that is proportional to the graph. Does not belong here: work per request (`request_time`).
"""
