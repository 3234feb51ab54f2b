"""The HTTP service: admission, cache, engines, roll-out, retraining jobs, metrics.

Imports sgformer, model_store and sgformer_client, never training. The service and training share the snapshot on disk and
`model_store/run_contract.py` with `model_store/run_settings.py`.
"""
