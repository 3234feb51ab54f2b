"""The benchmarks: a module per group, whose functions measure and return rows of docs/benchmarks.md.

groups.md describes each group. What several groups share (servers, load, graphs, memory, results) is one folder up.
"""
