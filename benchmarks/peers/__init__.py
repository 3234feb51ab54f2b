"""The same model in other model servers. Each module runs in that server's own environment, see benchmarks/http_peers.py."""
