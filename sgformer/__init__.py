"""SGFormer: exact linear attention over a graph, and exact answers for nodes that are not in the graph.

Belongs here: the model and its mathematics. Does not belong here: files and HTTP.
Importing this package does not import torch: names that need torch are loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sgformer.adjacency import Adjacency
from sgformer.config import ModelConfig
from sgformer.errors import (
    ChangeError,
    ConfigError,
    GraphError,
    NeighborhoodTooLarge,
    NewNodeError,
    SgformerError,
    SumsError,
    UnknownNodeError,
    WeightsError,
)
from sgformer.features import SparseRows
from sgformer.graph import Graph
from sgformer.live.changes import Changes, Draft
from sgformer.live.changing_graph import ChangingGraph
from sgformer.request_time.extension import ExtendedAnswers, extend
from sgformer.request_time.inference import Answers, InferenceModel, probabilities
from sgformer.request_time.new_nodes import NewNodes
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums

if TYPE_CHECKING:
    from sgformer.full_graph.forward import FullForward, Summary, full_logits, summarize
    from sgformer.importers.pretrained import from_authors_large, from_authors_medium, from_pyg
    from sgformer.torch_model.model import SGFormer

_NEED_TORCH = {
    "FullForward": "full_graph.forward",
    "SGFormer": "torch_model.model",
    "Summary": "full_graph.forward",
    "from_authors_large": "importers.pretrained",
    "from_authors_medium": "importers.pretrained",
    "from_pyg": "importers.pretrained",
    "full_logits": "full_graph.forward",
    "summarize": "full_graph.forward",
}

__all__ = [
    "Adjacency",
    "Answers",
    "AttentionSums",
    "ChangeError",
    "Changes",
    "ChangingGraph",
    "ConfigError",
    "Draft",
    "ExtendedAnswers",
    "FullForward",
    "Graph",
    "GraphError",
    "InferenceModel",
    "ModelConfig",
    "NeighborhoodTooLarge",
    "NewNodeError",
    "NewNodes",
    "NodeStates",
    "SGFormer",
    "SgformerError",
    "SparseRows",
    "Summary",
    "SumsError",
    "UnknownNodeError",
    "WeightsError",
    "extend",
    "from_authors_large",
    "from_authors_medium",
    "from_pyg",
    "full_logits",
    "probabilities",
    "summarize",
]


def __getattr__(name: str) -> Any:
    if name in _NEED_TORCH:
        return getattr(import_module(f"sgformer.{_NEED_TORCH[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
