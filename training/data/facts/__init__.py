"""Facts about a user's data before training: edges, features, labels, and what is suspicious about them.

Does not belong here: reading the data (`data`), choosing settings (`fit`), and printing (`cli`).
"""
