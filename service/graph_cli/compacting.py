"""Submits a compaction to a running service and waits for its job."""

from __future__ import annotations

import json
import time
from typing import Any

from model_store import DataError
from sgformer_client import Client

POLL_SECONDS = 0.5


class AdminClient(Client):
    """A client whose key is the admin token."""

    def compact(self, wait: bool) -> dict[str, Any]:
        """Submits a compaction and returns its job; with `wait`, when it has succeeded. Raises DataError if it fails."""
        job_id = json.loads(self._send(self._http.build_request("POST", "/admin/graph/compact")))["job"]
        while True:
            job: dict[str, Any] = json.loads(self._send(self._get(f"/admin/jobs/{job_id}")))
            if not wait or job["state"] == "succeeded":
                return job
            if job["state"] not in ("queued", "running"):
                raise DataError(f"job {job_id} has {job['state']}: {job['error'] or 'no reason was given'}")
            time.sleep(POLL_SECONDS)
