"""Reads a user's graph from a folder of tables: a table of nodes and one of edges, CSV or parquet, every cell checked.

Does not belong here: `graph.npz`, tasks and splits (`user_data`), and the feature schema itself (`model_store`).
"""
