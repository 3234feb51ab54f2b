"""Shadow verification (are answers still right?) and drift (do requests and the graph still resemble the training graph?).

All of it runs beside the requests: nothing here delays an answer.
"""
