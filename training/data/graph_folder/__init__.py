"""The graph folder: a graph on disk that is mapped, not loaded, and the import that makes it from tables, npz and OGB files.

Does not belong here: what tables mean (`tables`), and training (`fit`). docs/graph_folder.md specifies the format.
"""
