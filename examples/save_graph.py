"""Write graphs of other Python libraries as files for `sgf-train --data`: python examples/save_graph.py FOLDER

A file of torch.save is a pickle, which could run code: `sgf-train` never loads it. Load it in your own program, as here.
"""

import sys
from pathlib import Path

import networkx as nx
import numpy as np
import torch
from torch_geometric.data import Data

from training import save_graph

folder = Path(sys.argv[1])
rng = np.random.default_rng(0)

# 1. PyTorch Geometric: features, edges, labels and masks come from the Data.
edges = torch.tensor(rng.integers(0, 60, (2, 200)))
data = Data(x=torch.rand(60, 4), edge_index=edges, y=torch.arange(60) % 3)
torch.save(data, folder / "data.pt")
data = torch.load(folder / "data.pt", weights_only=False)  # your own file, which you trust
save_graph(folder / "pyg.npz", data, class_names=["red", "green", "blue"])

# 2. NetworkX: the ids are the nodes, and features and labels are attributes of the nodes.
club = nx.karate_club_graph()
for member, attributes in club.nodes(data=True):
    attributes |= {"friends": club.degree(member), "clustering": nx.clustering(club, member)}
for _, _, attributes in club.edges(data=True):
    del attributes["weight"]  # the model does not use weights of edges: save_graph refuses them
save_graph(folder / "networkx.npz", club, x=["friends", "clustering"], y="club")

# 3. Edge lists: row numbers; or ids, if node_ids lists them.
pairs = [["ann", "bob", "cy"], ["bob", "cy", "dee"]]  # sources, targets
people, jobs = ["ann", "bob", "cy", "dee"], [0, 1, 0, 1]
save_graph(folder / "edges.npz", pairs, x=rng.random((4, 2)), y=jobs, node_ids=people, class_names=["baker", "smith"])

for name in ("pyg", "networkx", "edges"):
    sys.stdout.write(f"sgf-train check {folder / name}.npz\n")
