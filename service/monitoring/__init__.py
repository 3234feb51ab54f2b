"""Shadow verification (are answers still right?) and drift (are requests and the graph still like those of training?).

All of it runs beside the requests: nothing here delays an answer.
"""
