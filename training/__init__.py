"""Turns data into a trained model, and a trained model into a snapshot in the store.

data/ reads graphs, fit/ trains, release/ publishes and activates, report/ and paper/ make pages, cli/ is `sgf-train`.
"""

from training.release.publishing import publish, refresh

__all__ = ["publish", "refresh"]
