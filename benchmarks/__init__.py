"""Ratios against named peers and floors, measured in one run: `make bench` (or `python -m benchmarks`)."""
