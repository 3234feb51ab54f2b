"""Data -> trained model -> snapshot. Imports sgformer and model_store."""

from training.release.publishing import publish, refresh

__all__ = ["publish", "refresh"]
