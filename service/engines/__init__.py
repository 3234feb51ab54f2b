"""Engines, which compute answers from an open snapshot, and the served model: an engine with its version.

Belongs here: numpy, torch and ONNX Runtime behind one interface. Does not belong here: requests, batches, asyncio, HTTP.
"""
