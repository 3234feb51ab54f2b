"""The live graph of this worker: its own commits, and the changes that other workers commit.

Belongs here: which changes a request asks for, when they are applied, and which requests wait for them.
Does not belong here: validation and mathematics (`model_store.live_graph`), the log (`model_store.graph_log`), HTTP.
"""
