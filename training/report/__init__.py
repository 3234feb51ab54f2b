"""The report page of a training run, and its charts.

Does not belong here: scores and losses (`fit.tasks`), and what a terminal shows (`cli`).
"""
