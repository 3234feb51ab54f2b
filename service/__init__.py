"""HTTP to answers: admission, cache, engine, roll-out, jobs, metrics, console.

Imports sgformer and model_store, never training: the snapshot is their only contract.
"""
