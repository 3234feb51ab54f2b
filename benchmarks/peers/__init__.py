"""The same model in other model servers. Each module runs in the environment of its server (benchmarks/http_peers.py).

Measurements do not belong here: a module only starts its server.
"""
