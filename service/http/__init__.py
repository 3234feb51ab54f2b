"""HTTP: the protocol, the routes, keys, error responses and the OpenAPI document.

Does not belong here: numbers (`predict`) and versions (`rollout`).
"""
