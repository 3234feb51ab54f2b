"""The nearest rows of an array of unit rows, by cosine: an exact scan, and inverted lists. numpy only.

Belongs here: how neighbours are found. Does not belong here: what the rows are, and files.
"""
