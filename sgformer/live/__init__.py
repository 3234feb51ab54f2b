"""A graph that changes while it is served: exact answers after every change, without a pass over all nodes.

Belongs here: the difference of the current graph from the stored graph, and its effect on states and sums; numpy only.
Does not belong here: ids of users, logs, files (`model_store`), and new nodes that are not kept (`request_time`).
"""
