"""Train PyTorch Geometric's own SGFormer and export it for this project: python examples/import_from_pyg.py FOLDER

Writes FOLDER/weights.safetensors and FOLDER/graph.npz, and the log-probabilities that PyG's model gives for every node.
Then `sgf-models import` publishes a snapshot with the same predictions, which also serves new nodes.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch_geometric.nn.models import SGFormer

folder = Path(sys.argv[1])
torch.manual_seed(0)

pixels, digits = load_digits(return_X_y=True)
links = kneighbors_graph(pixels, 6).tocoo()
x = torch.tensor(pixels / 16, dtype=torch.float)
edge_index = torch.tensor(np.stack([np.append(links.row, links.col), np.append(links.col, links.row)])).unique(dim=1).long()
y, batch = torch.tensor(digits), torch.zeros(len(x), dtype=torch.long)
split = torch.bucketize(torch.rand(len(x)), torch.tensor([0.5, 0.75]))  # 0 training, 1 validation, 2 test
training = split == 0

model = SGFormer(64, 32, 10, trans_num_layers=1, gnn_num_layers=2)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(40):
    optimizer.zero_grad()
    F.nll_loss(model(x, edge_index, batch)[training], y[training]).backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    answers = model(x, edge_index, batch)
accuracy = (answers.argmax(dim=1) == y)[~training].float().mean()

save_file(model.state_dict(), folder / "weights.safetensors")
graph = {"x": x, "edge_index": edge_index, "y": y, "split": split}  # y and split may be left out
np.savez(folder / "graph.npz", class_names=np.array(list("0123456789")), **{name: t.numpy() for name, t in graph.items()})
np.save(folder / "answers.npy", answers.numpy())
sys.stdout.write(f"PyG's model is right for {accuracy:.1%} of the digits that it was not trained on.\n")
sys.stdout.write(
    f"sgf-models import --layout pyg --weights {folder}/weights.safetensors --graph {folder}/graph.npz --activate\n"
)
