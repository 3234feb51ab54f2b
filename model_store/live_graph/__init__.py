"""The graph of a snapshot as it is after the changes that a log holds.

Belongs here: operations by node id, their validation, and the state that they lead to.
Does not belong here: the mathematics (`sgformer.live`), the log itself (`graph_log`), HTTP and asyncio (`service`).
"""
