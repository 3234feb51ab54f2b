"""The Python client of the service: `Client`, `AsyncClient` and the types of its responses.

This package imports no other package of this project, so a program that only sends requests does not load the service, and
a folder named `service` or `training` beside that program does no harm.
"""

from sgformer_client.answers import (
    ClassesAnswer,
    DriftAnswer,
    ExplainAnswer,
    FeaturesAnswer,
    GraphAnswer,
    GraphChanged,
    MapAnswer,
    ModelsAnswer,
    NodeAnswer,
    NodesAnswer,
    PredictAnswer,
    Prediction,
    SimilarAnswer,
)
from sgformer_client.client import AsyncClient, Client, ServiceError, add_node, new_node, set_features

__all__ = [
    "AsyncClient",
    "ClassesAnswer",
    "Client",
    "DriftAnswer",
    "ExplainAnswer",
    "FeaturesAnswer",
    "GraphAnswer",
    "GraphChanged",
    "MapAnswer",
    "ModelsAnswer",
    "NodeAnswer",
    "NodesAnswer",
    "PredictAnswer",
    "Prediction",
    "ServiceError",
    "SimilarAnswer",
    "add_node",
    "new_node",
    "set_features",
]
