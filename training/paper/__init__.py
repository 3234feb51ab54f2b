"""The tables of the paper: runs of the recipes, the published figures, and the page that shows both.

Does not belong here: training itself (`fit`) and recipes (`training/recipes`).
"""
