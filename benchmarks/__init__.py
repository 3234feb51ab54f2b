"""Compares this project with named peers and floors, all measured in one run: `make bench` or `python -m benchmarks`."""
