"""HTTP: the protocol, the routes, keys, error responses and the OpenAPI document.

Does not belong here: computing answers (`predict`) and choosing versions (`rollout`).
"""
