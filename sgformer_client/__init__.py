"""The Python client of the service: `Client`, `AsyncClient` and the types of its answers.

A package of its own, so that a program that only sends requests needs nothing of the service, and no folder named `service`
can take its place. Imports nothing of ours.
"""

from sgformer_client.answers import ModelsAnswer, PredictAnswer, Prediction
from sgformer_client.client import AsyncClient, Client, ServiceError, new_node

__all__ = ["AsyncClient", "Client", "ModelsAnswer", "PredictAnswer", "Prediction", "ServiceError", "new_node"]
