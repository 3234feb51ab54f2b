"""SGFormer: exact linear attention over a graph, and exact answers for nodes that the graph has never seen.

Importing this package does not import torch. Names that need it are loaded when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sgformer.adjacency import Adjacency
from sgformer.config import ModelConfig
from sgformer.errors import (
    ConfigError,
    GraphError,
    NeighborhoodTooLarge,
    NewNodeError,
    SgformerError,
    SumsError,
    UnknownNodeError,
    WeightsError,
)
from sgformer.extension import ExtendedAnswers, extend
from sgformer.features import SparseRows
from sgformer.graph import Graph
from sgformer.inference import Answers, InferenceModel
from sgformer.new_nodes import NewNodes
from sgformer.outputs import probabilities
from sgformer.states import NodeStates
from sgformer.sums import AttentionSums

if TYPE_CHECKING:
    from sgformer.evaluation import FullForward, full_logits
    from sgformer.model import SGFormer
    from sgformer.pretrained import from_authors_large, from_authors_medium, from_pyg
    from sgformer.summary import Summary, summarize

_NEED_TORCH = {
    "FullForward": "sgformer.evaluation",
    "SGFormer": "sgformer.model",
    "Summary": "sgformer.summary",
    "from_authors_large": "sgformer.pretrained",
    "from_authors_medium": "sgformer.pretrained",
    "from_pyg": "sgformer.pretrained",
    "full_logits": "sgformer.evaluation",
    "summarize": "sgformer.summary",
}

__all__ = [
    "Adjacency",
    "Answers",
    "AttentionSums",
    "ConfigError",
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
        return getattr(import_module(_NEED_TORCH[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
