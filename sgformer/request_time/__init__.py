"""What runs for a request: answers for known and for new nodes, from stored states and global sums.

Numpy only on a CPU. Work here never grows with the number of nodes of the graph.
"""
