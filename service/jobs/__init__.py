"""Retraining: a job is submitted, queued, trained in a separate process, and its version may go live.

`JobService` works on a `Ledger`: job records in a SQLite file, or in Redis for `sgf-worker` processes.
Does not belong here: HTTP (`service.http`) and the training itself (`training`, which is never imported).
"""
