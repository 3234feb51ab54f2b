"""Data to trained model to snapshot. Imports sgformer and model_store, never service."""
