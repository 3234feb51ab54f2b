"""SGFormer: exact linear attention over a graph, and exact answers for nodes that are not in the graph.

Belongs here: the model and its mathematics. Does not belong here: files and HTTP.
Importing this package does not import torch: names that need torch are loaded at first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from sgformer.full_graph.forward import FullForward, Summary, full_logits, summarize
    from sgformer.graph import Graph
    from sgformer.importers.pretrained import from_authors_large, from_authors_medium, from_pyg
    from sgformer.live.changes import Changes, Draft
    from sgformer.live.changing_graph import ChangingGraph
    from sgformer.request_time.extension import ExtendedAnswers, extend
    from sgformer.request_time.inference import Answers, InferenceModel, probabilities
    from sgformer.request_time.new_nodes import NewNodes
    from sgformer.states import NodeStates
    from sgformer.sums import AttentionSums
    from sgformer.torch_model.model import SGFormer

_MODULES = {
    "Adjacency": "adjacency",
    "Answers": "request_time.inference",
    "AttentionSums": "sums",
    "Changes": "live.changes",
    "ChangingGraph": "live.changing_graph",
    "Draft": "live.changes",
    "ExtendedAnswers": "request_time.extension",
    "FullForward": "full_graph.forward",
    "Graph": "graph",
    "InferenceModel": "request_time.inference",
    "ModelConfig": "config",
    "NewNodes": "request_time.new_nodes",
    "NodeStates": "states",
    "SGFormer": "torch_model.model",
    "SparseRows": "features",
    "Summary": "full_graph.forward",
    "extend": "request_time.extension",
    "from_authors_large": "importers.pretrained",
    "from_authors_medium": "importers.pretrained",
    "from_pyg": "importers.pretrained",
    "full_logits": "full_graph.forward",
    "probabilities": "request_time.inference",
    "summarize": "full_graph.forward",
}
"""The module of each name; the names that are not listed are in `errors`."""

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    return value
