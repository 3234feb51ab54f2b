"""A retraining removes old versions of its model (SGF_KEEP_VERSIONS), also those that never went live."""

from __future__ import annotations

from pathlib import Path

from model_store import Store
from tests.service.jobs.retraining import TOKEN, data_root, submit, wait_for_end, weak_model
from tests.service.serving import in_processes


def test_a_retraining_over_http_keeps_as_many_versions_as_the_setting_says(tmp_path: Path) -> None:
    root, store = data_root(tmp_path), tmp_path / "models"
    for version in (1, 2, 3):
        weak_model(store, root, activate=version == 1)
    with in_processes(store, data_root=str(root), admin_token=TOKEN, model="demo", keep_versions="1") as running:
        job = wait_for_end(running.client, submit(running.client, refresh=True, activate="never"))
        assert (job["state"], job["version"], job["live"]) == ("succeeded", 4, False)
        assert "removed old versions of demo: 2, 3" in job["log_tail"]
    assert Store(store).model("demo").versions() == [1, 4]
