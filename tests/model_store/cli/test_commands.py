"""The commands of sgf-models: output, JSON and exit codes."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from pathlib import Path

import onnxruntime
import pytest

from model_store import DataError, FeatureColumn, FeatureSchema, ModelVersions, Store
from model_store.__main__ import main
from model_store.cli.terminal import describe_publication
from tests.model_store.samples import publish, small_contents, small_labels


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SGF_STORE", "SGF_MODEL"):
        monkeypatch.delenv(name, raising=False)


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_every_command(versions: ModelVersions, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    store = ["--store", versions.folder.parent]
    code, out, _ = run(capsys, *store, "list")
    assert code == 0
    assert [line.split()[:2] for line in out.splitlines()[1:]] == [["demo", "1"], ["demo", "2"]]
    assert ["live" in line for line in out.splitlines()[1:]] == [True, False]
    assert run(capsys, *store, "activate", 2)[:2] == (0, "demo 2 is live (before: 1)\n")
    assert run(capsys, "rollback", *store, "--json")[1] == '{"live": 1, "before": 2}\n'
    assert "demo 2: every file is as published; probe errors: known " in run(capsys, *store, "verify", "--all")[1]
    description = run(capsys, *store, "show")[1]
    assert "demo 1 (live)" in description
    assert "rollback 1" in description
    assert run(capsys, *store, "prune", "--keep", 1)[1] == "demo: removed 0 version(s)\n"
    assert run(capsys, *store, "export-onnx", "--output", tmp_path / "m.onnx")[0] == 0
    onnxruntime.InferenceSession(tmp_path / "m.onnx", providers=["CPUExecutionProvider"])


def test_json_output(versions: ModelVersions, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--json", "--store", versions.folder.parent]
    listed = json.loads(run(capsys, *store, "list")[1])
    assert [(entry["version"], entry["live"]) for entry in listed] == [(1, True), (2, False)]
    manifest = json.loads(run(capsys, *store, "show", 2)[1])
    assert manifest["snapshot"] == versions.manifest(2).snapshot == listed[1]["snapshot"]
    probes = json.loads(run(capsys, *store, "verify")[1])[0]["probes"]
    assert max(probes.values()) < 1e-4


def test_exit_codes_by_kind_of_failure(versions: ModelVersions, capsys: pytest.CaptureFixture[str]) -> None:
    store = ["--store", versions.folder.parent]
    assert run(capsys, *store, "activate", 9) == (
        3,
        "",
        "sgf-models: there is no version 9 of demo (existing versions: 1, 2)\n",
    )
    assert run(capsys, *store, "--model", "other", "list")[0] == 3
    assert run(capsys, *store, "activate", "../2")[0] == 2
    assert run(capsys, *store, "rollback")[0] == 1
    with pytest.raises(SystemExit) as usage:
        run(capsys, *store, "prune", "--keep", 0)
    assert usage.value.code == 2
    assert "'0' is not a whole number of at least 1" in capsys.readouterr().err
    (versions.folder / "2" / "weights.safetensors").write_bytes(b"")
    code, out, _ = run(capsys, *store, "--json", "verify", "--all")
    assert code == 4
    first, second = json.loads(out)
    assert set(first) == {"version", "probes"}
    assert second["error"].startswith("weights.safetensors: is 0 bytes long")
    assert "demo 2: NOT FIT TO SERVE: weights.safetensors" in run(capsys, *store, "verify", "2")[1]
    assert run(capsys, *store, "verify", "--all", "2")[0] == 2
    assert run(capsys, *store, "verify", "")[0] == 2
    code, _, err = run(capsys, *store, "--json", "activate", 2)
    assert code == 4
    assert json.loads(err)["error"].startswith("weights.safetensors: is 0 bytes long")


def test_list_marks_a_damaged_version(versions: ModelVersions, capsys: pytest.CaptureFixture[str]) -> None:
    (versions.folder / "2" / "manifest.json").write_text("{}")
    code, out, _ = run(capsys, "--store", versions.folder.parent, "list")
    assert code == 0
    assert "damaged: manifest.json: format is None" in out
    (versions.folder / "CURRENT").write_text("garbage")
    code, out, _ = run(capsys, "--store", versions.folder.parent, "list")
    assert (code, len(out.splitlines())) == (0, 3)
    assert run(capsys, "--store", versions.folder.parent, "show")[0] == 4
    assert run(capsys, "--store", versions.folder.parent, "activate", 1)[:2] == (0, "demo 1 is live (before: none)\n")


def test_removing_versions(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """The live version, the roll-back target and the newest stay, and so does everything if one of several must stay."""
    for seed in range(6):
        publish(store, seed, activate=seed in (1, 3))
    where, versions = ["--store", store.root], store.model("demo")
    assert run(capsys, *where, "remove", 1, 1) == (0, "demo: removed 1 version(s) (1)\n", "")
    for version, reason in ((4, "it is live"), (2, "a roll-back would make it live"), (6, "it is the newest")):
        code, out, err = run(capsys, *where, "remove", 3, version)
        assert (code, out) == (1, "")
        assert err.startswith(f"sgf-models: version {version} of demo cannot be removed: {reason}")
    assert run(capsys, *where, "remove", 3, 9)[::2] == (
        3,
        "sgf-models: there is no version 9 of demo (existing versions: 2, 3, 4, 5, 6)\n",
    )
    assert run(capsys, *where, "remove", "../2")[0] == 2
    assert versions.versions() == [2, 3, 4, 5, 6]
    with versions.open(5):
        code, out, _ = run(capsys, *where, "--json", "remove", 5, 3)
        assert (code, json.loads(out)) == (1, {"removed": [3], "leftovers": 0, "in_use": [5]})
    assert run(capsys, *where, "remove", 5)[0] == 0
    assert versions.versions() == [2, 4, 6]


def test_show_names_the_features_the_raw_data_and_the_live_graph(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    schema = FeatureSchema(tuple(FeatureColumn(name, "number") for name in ("age", "days", "x", "y", "z")))
    live = {"graph": "a1b2", "sequence": 1200}
    store.publish("demo", small_contents(0, features=schema, live=live, **small_labels()), onnx=False, activate=True)
    store.publish("demo", small_contents(0), onnx=False, raw_data=False)
    lines = run(capsys, "--store", store.root, "show")[1].splitlines()
    for expected in ("features age, days, x, y, z", "raw data features, labels, split", "live graph a1b2 at change 1,200"):
        assert expected in [" ".join(line.split()) for line in lines]
    content = json.loads(run(capsys, "--store", store.root, "show", "--json")[1])
    assert (content["live"], content["live_graph"]) == (True, live)
    assert "raw data      none" in run(capsys, "--store", store.root, "show", 2)[1].splitlines()


SCORES = {"test_accuracy": 0.91234, "test_macro_f1": 0.9012, "validation_accuracy": 0.5}


def test_list_fits_a_terminal(store: Store) -> None:
    """On a pseudo-terminal of this width; a pipe gets every column, one line per version."""
    for scores in ({}, SCORES):
        store.publish("demo", small_contents(0, scores=scores), onnx=False, activate=bool(scores))
    (store.root / "demo" / "1" / "manifest.json").write_text("{}")
    wide = list_on_terminal(store, 200)
    assert len(wide) == 3
    assert wide[0].split() == ["model", "version", "created", "nodes", "edges", "states", "size", "scores"]
    narrow = list_on_terminal(store, 70)
    assert max(map(len, narrow)) <= 70
    assert narrow[0].split() == ["model", "version", "created", "scores"]
    text = " ".join(" ".join(narrow).split())
    assert "test_accuracy 0.9123, test_macro_f1 0.9012" in text
    assert "damaged: manifest.json: format is None" in text
    command = [sys.executable, "-m", "model_store", "--store", str(store.root), "list"]
    piped = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": "40"})
    assert piped.stdout.splitlines() == wide


def list_on_terminal(store: Store, columns: int) -> list[str]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    command = [sys.executable, "-m", "model_store", "--store", str(store.root), "list"]
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    subprocess.run(command, stdout=theirs, check=True, env=environment)
    text = os.read(ours, 100_000).decode()  # less than the buffer of a terminal holds
    os.close(theirs)
    os.close(ours)
    return text.splitlines()


def test_a_damaged_history_is_a_warning(versions: ModelVersions, capsys: pytest.CaptureFixture[str]) -> None:
    with (versions.folder / "HISTORY").open("a") as log:
        log.write("garbage\n")
    for command in (["list"], ["verify", "1"], ["--json", "list"]):
        code, out, err = run(capsys, "--store", versions.folder.parent, *command)
        assert (code, "garbage" in out) == (0, False)
        assert err.startswith("sgf-models: warning: demo: HISTORY: 1 line(s) cannot be understood")
    (versions.folder / "CURRENT").write_text("garbage")
    code, out, err = run(capsys, "--store", versions.folder.parent, "list")
    assert (code, len(out.splitlines())) == (0, 3)
    assert "warning: demo: CURRENT: holds 'garbage'" in err


def test_pruning_continues_after_a_model_that_cannot_be_pruned(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("a", "b", "c", "d"):
        for version in (1, 2, 3):
            publish(store, model=model, activate=version == 1)
    (store.root / "a" / "CURRENT").write_text("garbage")
    (store.root / "b" / "HISTORY").write_text("garbage")
    (store.root / "bb").mkdir()  # left by a failed first publication
    (store.root / "c" / ".lock").unlink()
    (store.root / "c" / ".lock").mkdir()
    code, out, err = run(capsys, "--store", store.root, "prune", "--keep", 1)
    assert code == 1
    assert out.splitlines()[0].startswith("a: NOT PRUNED: CURRENT: holds 'garbage'")
    assert out.splitlines()[1:3] == ["b: removed 1 version(s) (2)", "bb: removed 0 version(s)"]
    assert out.splitlines()[3].startswith("c: NOT PRUNED: ")
    assert out.splitlines()[4] == "d: removed 1 version(s) (2)"
    assert [store.model(model).versions() for model in "abcd"] == [[1, 2, 3], [1, 3], [1, 2, 3], [1, 3]]
    assert "warning: b: HISTORY: 1 line(s) cannot be understood" in err
    assert run(capsys, "--store", store.root, "prune", "--model", "d")[0] == 0
    results = json.loads(run(capsys, "--store", store.root, "prune", "--json")[1])
    assert [(result["model"], "error" in result) for result in results] == [
        ("a", True),
        *((m, m == "c") for m in ("b", "bb", "c", "d")),
    ]


def test_an_empty_store_has_nothing_to_prune(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--store", tmp_path / "none", "prune")[0] == 0


def test_a_closed_pipe_is_not_an_error(versions: ModelVersions) -> None:
    command = f"{sys.executable} -m model_store --store {versions.folder.parent} list | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)  # noqa: S607
    assert (result.returncode, result.stderr) == (0, "")


def test_a_missing_package_is_reported_with_the_extra_to_install(
    versions: ModelVersions, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "model_store.publish.onnx_head", None)
    code, _, err = run(capsys, "--store", versions.folder.parent, "export-onnx")
    assert (code, err) == (
        1,
        "sgf-models: this needs model_store.publish.onnx_head: pip install 'sgformer-serving[train]'\n",
    )


def test_an_empty_store_explains_the_next_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "Train one (sgf-train), or import one" in run(capsys, "--store", tmp_path, "list")[1]
    code, _, err = run(capsys, "--store", tmp_path, "show")
    assert (code, "the store has no model yet: publish one with `sgf-train`" in err) == (3, True)


def test_the_only_model_needs_no_name(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(
        DataError, match=r"^the store has no model yet: publish one with `sgf-train` or `sgf-models import`$"
    ):
        store.only_model()
    publish(store, model="b", activate=True)
    assert store.only_model() == "b"
    assert run(capsys, "--store", store.root, "show")[0] == 0
    publish(store, model="a")
    with pytest.raises(DataError, match=r"^say which model with --model: the store has a, b$"):
        store.only_model()
    code, _, err = run(capsys, "--store", store.root, "show")
    assert (code, err) == (3, f"sgf-models: say which model with --model: the store has a, b ({store.root})\n")


def test_a_publication_message_explains_how_to_activate() -> None:
    assert describe_publication("digits", 1, 1796, live=True) == "published digits 1, 1,796 nodes, live"
    message = "published digits 1, 1,796 nodes, not live yet: sgf-models --model digits activate 1"
    assert describe_publication("digits", 1, 1796, live=False) == message


def test_the_environment_names_store_and_model(versions: ModelVersions) -> None:
    command = [sys.executable, "-m", "model_store", "show", "--json"]
    environment = {"SGF_STORE": str(versions.folder.parent), "SGF_MODEL": "demo", "PATH": ""}
    result = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert json.loads(result.stdout)["version"] == 1
