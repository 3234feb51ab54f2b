"""The graph of a snapshot after the changes of its log.

Belongs here: operations by node id, their validation, and the resulting state.
Does not belong here: the mathematics (`sgformer.live`), the log itself (`graph_log`), HTTP and asyncio (`service`).
"""
