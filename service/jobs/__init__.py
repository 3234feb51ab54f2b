"""Retraining: a job is submitted, queued, trained in a process of its own, judged, and perhaps live.

`runner` is the interface; `local` and `redis_runner` are the two ways to run jobs; `supervision` is what both share.
"""
