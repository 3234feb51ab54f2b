"""The Python client of the service: `Client`, `AsyncClient` and the types of its responses.

This package imports nothing else of this project, so a program that only sends requests loads none of the service, and a
folder named `service` or `training` beside that program does no harm.
"""

from sgformer_client.answers import ModelsAnswer, PredictAnswer, Prediction
from sgformer_client.client import AsyncClient, Client, ServiceError, new_node

__all__ = ["AsyncClient", "Client", "ModelsAnswer", "PredictAnswer", "Prediction", "ServiceError", "new_node"]
