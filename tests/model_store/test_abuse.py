"""Everything that can be wrong with a snapshot, one test each: refused, with the file named, and nothing else harmed.

truncated · a flipped byte in any file · wrong type, shape, order · a header that claims too much · links and `..` ·
extra and missing files · a future format · NaN sums · another snapshot's manifest · no permission · no space ·
a pickle for an array · indices that lead outside the graph
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from model_store import InvalidName, ModelVersions, SnapshotError, Store, UnknownModel, UnknownVersion
from tests.model_store.samples import NODES, publish

FILES = [
    "weights.safetensors",
    "sums.safetensors",
    "probes.safetensors",
    "graph/indptr.npy",
    "graph/indices.npy",
    "states/inputs.npy",
    "states/layer_1.npy",
    "states/layer_2.npy",
    "states/aggregate_1.npy",
    "states/degrees.npy",
]


@pytest.fixture
def folder(versions: ModelVersions) -> Path:
    return versions.folder / "1"


def refused(folder: Path, file: str, reason: str, verify: Any = "full") -> None:
    """This version is refused with this reason; the other one still opens."""
    versions = ModelVersions(folder.parent)
    with pytest.raises(SnapshotError, match=reason) as caught:
        versions.open(1, verify)
    assert caught.value.file == file
    versions.open(2).close()


def forge(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """A manifest that was changed by somebody who knows the format: its hashes fit again."""
    content = json.loads((folder / "manifest.json").read_text())
    for name in content["files"]:
        if (folder / name).is_file():
            data = (folder / name).read_bytes()
            content["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    change(content)
    content.pop("snapshot")
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    content["snapshot"] = hashlib.sha256(canonical.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(content))


def unchanged(_content: dict[str, Any]) -> None:
    """For `forge`: only the hashes of the files are made to fit."""


def test_the_forger_of_these_tests_can_forge(folder: Path) -> None:
    """Else the tests below would pass for the wrong reason."""
    forge(folder, unchanged)
    ModelVersions(folder.parent).open(1).close()


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("verify", ["full", "sizes"])
def test_a_truncated_file(folder: Path, file: str, verify: str) -> None:
    os.truncate(folder / file, (folder / file).stat().st_size - 1)
    refused(folder, file, r"is [\d,]+ bytes long, the manifest says", verify)


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_a_flipped_byte_in_any_file(folder: Path, file: str, place: str) -> None:
    data = bytearray((folder / file).read_bytes())
    data[{"first": 0, "middle": len(data) // 2, "last": -1}[place]] ^= 1
    (folder / file).write_bytes(data)
    refused(folder, file, "its sha256 is not the one in the manifest")


def test_every_byte_of_the_manifest_matters(folder: Path) -> None:
    path = folder / "manifest.json"
    original = path.read_bytes()
    content = json.loads(original)
    for place in range(0, len(original), 7):
        data = bytearray(original)
        data[place] ^= 1
        try:
            same = json.loads(data) == content
        except ValueError:
            same = False
        if same:  # a space became another one: nothing was changed
            continue
        path.write_bytes(data)
        with pytest.raises(SnapshotError):
            ModelVersions(folder.parent).open(1, "sizes")


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros((NODES, 4)), "holds <f8, expected <f4"),
        (np.zeros((NODES, 4), dtype=">f4"), "holds >f4, expected <f4"),
        (np.zeros((NODES, 5), dtype=np.float32), r"has shape \(60, 5\), expected \(60, 4\)"),
        (np.zeros((NODES * 4,), dtype=np.float32), r"has shape \(240,\), expected \(60, 4\)"),
        (np.asfortranarray(np.zeros((NODES, 4), dtype=np.float32)), "is in Fortran order, expected C order"),
        (np.zeros((NODES, 4), dtype=[("a", "<f4")]), r"holds \|V4, expected <f4"),
    ],
)
def test_an_array_of_another_kind(folder: Path, array: np.ndarray, reason: str) -> None:
    np.save(folder / "states" / "layer_1.npy", array)
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", reason)


def test_a_header_that_claims_more_than_there_is(folder: Path) -> None:
    """Of the right shape, and shorter; and of a shape that nobody has the memory for."""
    path = folder / "states" / "layer_1.npy"
    data = path.read_bytes()
    path.write_bytes(data[:-8])
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", r"1,080 bytes long, expected 1,088 for \(60, 4\) <f4")
    path.write_bytes(data.replace(b"(60, 4), }            ", b"(60000000000000, 4), }"))
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", r"has shape \(60000000000000, 4\), expected \(60, 4\)")
    path.write_bytes(data.replace(b"(60, 4), }", b"(60, 4, (("))
    forge(folder, unchanged)
    refused(folder, "states/layer_1.npy", "not an npy file")


def test_a_manifest_that_claims_a_huge_graph(folder: Path) -> None:
    forge(folder, lambda content: content.update(nodes=10**15))
    refused(folder, "states/inputs.npy", r"has shape \(60, 4\), expected \(1000000000000000, 4\)")


def test_a_manifest_that_claims_a_huge_model(folder: Path) -> None:
    forge(folder, lambda content: content["config"].update(hidden=10**9))
    refused(folder, "states/inputs.npy", r"has shape \(60, 4\), expected \(60, 1000000000\)")


def test_a_tensor_header_that_claims_too_much(folder: Path) -> None:
    header = json.dumps({"x": {"dtype": "F32", "shape": [10**12], "data_offsets": [0, 4 * 10**12]}}).encode()
    (folder / "weights.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    forge(folder, unchanged)
    refused(folder, "weights.safetensors", "not a safetensors file that can be read")


def test_a_pickle_in_place_of_an_array_runs_nothing(folder: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "exploded",)

    for file in ("graph/indices.npy", "weights.safetensors"):
        original = (folder / file).read_bytes()
        (folder / file).write_bytes(pickle.dumps(Bomb()))
        forge(folder, unchanged)
        refused(folder, file, "not an npy file" if file.endswith("npy") else "not a safetensors file")
        np.save(folder / "graph" / "indices.npy", np.array([Bomb()], dtype=object), allow_pickle=True)
        if file.endswith("npy"):
            forge(folder, unchanged)
            refused(folder, file, r"holds \|O, expected <i4")
        (folder / file).write_bytes(original)
        (folder / "graph" / "indices.npy").write_bytes(original if file.endswith("npy") else b"")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("name", ["../evil.npy", "/etc/passwd", "states/../../2/manifest.json", "states/other.npy"])
def test_a_manifest_that_lists_a_file_the_format_does_not_know(folder: Path, name: str) -> None:
    forge(folder, lambda content: content["files"].update({name: {"size": 1, "sha256": "0" * 64}}))
    refused(folder, "manifest.json", "lists unknown files")


@pytest.mark.parametrize("file", [*FILES, "manifest.json"])
def test_a_symbolic_link_in_place_of_a_file(folder: Path, file: str) -> None:
    (folder / file).rename(folder.parent / "elsewhere")
    (folder / file).symlink_to(folder.parent / "elsewhere")
    refused(folder, file, "cannot be opened" if file == "manifest.json" else "is not an ordinary file")


def test_a_symbolic_link_in_place_of_a_folder(folder: Path) -> None:
    (folder / "states").rename(folder.parent / "elsewhere")
    (folder / "states").symlink_to(folder.parent / "elsewhere")
    refused(folder, "states", "is not an ordinary file")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"))
    refused(folder, "1", "is a symbolic link")


def test_a_model_that_is_a_link_out_of_the_store(versions: ModelVersions, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(versions.folder, outside)
    versions.folder.symlink_to(outside)
    store = Store(versions.folder.parent)
    with pytest.raises(UnknownModel):
        store.model("demo")
    with pytest.raises(UnknownModel, match="is a symbolic link"):
        publish(store)
    assert store.models() == []
    assert ModelVersions(outside).versions() == [1, 2]


@pytest.mark.parametrize("name", ["..", "../demo", "a/b", "", ".hidden", "Demo", "a" * 65, "a\0b", "-x", "über"])
def test_names_that_could_leave_the_store(store: Store, name: str) -> None:
    with pytest.raises(InvalidName, match="a model cannot be called"):
        store.model(name)
    with pytest.raises(InvalidName):
        publish(store, model=name)


@pytest.mark.parametrize("version", ["..", "0", "-1", "1/../2", "01", "1.0", " 1", "x", True, 0, 10**9])
def test_versions_that_are_none(versions: ModelVersions, version: Any) -> None:
    for use in (versions.open, versions.manifest, versions.activate):
        with pytest.raises(InvalidName, match="is no version"):
            use(version)


def test_an_unknown_version(versions: ModelVersions) -> None:
    with pytest.raises(UnknownVersion, match="there is no version 7 of demo"):
        versions.open(7)
    with pytest.raises(UnknownVersion, match=r"there is no version 7 of demo \(there: 1, 2\)"):
        versions.activate(7)


@pytest.mark.parametrize("file", [*FILES, "manifest.json"])
def test_a_missing_file(folder: Path, file: str) -> None:
    (folder / file).unlink()
    refused(folder, file, "is missing", "sizes")


@pytest.mark.parametrize("file", ["notes.txt", "states/extra.npy", ".hidden", "model.onnx"])
def test_an_extra_file(folder: Path, file: str) -> None:
    (folder / file).write_text("")
    refused(folder, file, "is not in the manifest", "sizes")


def test_a_pipe_in_the_folder_does_not_hang_the_reader(folder: Path) -> None:
    os.mkfifo(folder / "states" / "pipe")
    refused(folder, "states/pipe", "is not an ordinary file")
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    refused(folder, "manifest.json", "is not an ordinary file")


def test_a_folder_that_the_format_does_not_know(folder: Path) -> None:
    (folder / "states" / "more").mkdir()
    refused(folder, "states/more", "is a folder that the format does not know")


@pytest.mark.parametrize(
    ("tensor", "value", "reason"),
    [
        ("known.nodes", np.array([NODES]), "known.nodes must name nodes from 0 to 59, and one at least"),
        ("known.nodes", np.array([-1]), "known.nodes must name nodes"),
        ("known.nodes", np.array([], dtype=np.int64), "and one at least"),
        ("known.nodes", np.array(1), "known.nodes is int64 with 0 dimension"),
        ("known.nodes", np.array([1.0]), "known.nodes is float64 with 1 dimension"),
        ("hub.neighbors", np.array([np.inf]), "hub.neighbors is float64"),
        ("hub.neighbors", np.array([NODES]), "do not fit together|is not in the graph"),
        ("hub.counts", np.array([-1]), "do not fit together"),
        ("joint.edges", np.array([0, 1]), "joint.edges is int64 with 1 dimension"),
        ("joint.edges", np.array([[0, 1, 1]]), "do not fit together"),
        ("joint.features", np.ones((2, 3), dtype=np.float32), "features are 3 wide, expected 5"),
        ("hub.logits", np.full((1, 3), np.nan, dtype=np.float32), "expected .* and finite numbers"),
        ("surprise", np.zeros(1), "has unknown .*surprise"),
    ],
)
def test_probes_that_could_not_be_asked(folder: Path, tensor: str, value: np.ndarray, reason: str) -> None:
    probes = load_file(folder / "probes.safetensors")
    probes[tensor] = value
    save_file(probes, folder / "probes.safetensors")
    forge(folder, unchanged)
    refused(folder, "probes.safetensors", reason)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"format": 2}, "format is 2, this version reads format 1"),
        ({"format": None}, "format is None"),
        ({"nodes": "60"}, "nodes is str"),
        ({"nodes": True}, "nodes is bool"),
        ({"nodes": 1}, "1 nodes and .* edges are no graph"),
        ({"edges": -1}, "are no graph"),
        ({"surprise": 1}, "has unknown keys: 'surprise'"),
        ({"node_ids": "|O"}, "node ids of type"),
        ({"classes": ["a"]}, "1 class names for 3 outputs"),
        ({"classes": [1, 2, 3]}, "a class name is not a text"),
        ({"states": {"dtype": "float8", "error": {}}}, "states are"),
        ({"model": "../x"}, "a model cannot be called"),
        ({"model": "other"}, "is of model other, expected demo"),
        ({"states": {"dtype": ["float32"], "error": {}}}, "states are"),
        ({"states": {"dtype": "float32", "error": {"embeddings": "b", "logits": 0.0}}}, "expected numbers"),
        ({"states": {"dtype": "float32", "error": {"a": 0.0}}}, "states are"),
        ({"node_ids": "|S²"}, "node ids of type"),
        ({"node_ids": "|S300"}, "node ids of type"),
        ({"probe_tolerance": 1e300}, "at most 0.1 is a check"),
        ({"probe_tolerance": 0.0}, "at most 0.1 is a check"),
        ({"files": {}}, "lists 0 files, too few for 2 layers"),
    ],
)
def test_a_manifest_that_says_something_else(folder: Path, change: dict[str, Any], reason: str) -> None:
    forge(folder, lambda content: content.update(change))
    refused(folder, "manifest.json", reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"format": 1, "format": 1}', "a key is there twice"),
        ('{"format": NaN}', "NaN is not a JSON number"),
        ('{"format": 1}', "its snapshot hash is not that of its content"),
        ('{"format": 1, "probe_tolerance": 1e999}', "is not JSON that could be written again"),
        ('{"format": 1, "model": "\\ud800"}', "is not JSON that could be written again"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_manifest_that_is_none(folder: Path, text: str, reason: str) -> None:
    (folder / "manifest.json").write_text(text)
    refused(folder, "manifest.json", reason)


@pytest.mark.parametrize("layers", [30, 10**9])
def test_more_layers_than_files_are_not_even_named(folder: Path, layers: int) -> None:
    forge(folder, lambda content: content["config"].update(layers=layers))
    refused(folder, "manifest.json", f"lists 10 files, too few for {layers} layers")


def test_a_config_of_numbers_beyond_all_floats(folder: Path) -> None:
    forge(folder, lambda content: content["config"].update(alpha=10**400))
    refused(folder, "manifest.json", "too large to convert to float")


def test_a_config_of_another_model(folder: Path) -> None:
    forge(folder, lambda content: content["config"].update(alpha=2.0))
    refused(folder, "manifest.json", "alpha must lie in")
    forge(folder, lambda content: content["config"].update(alpha=0.5, out_features=7))
    refused(folder, "weights.safetensors", "output.weight has shape")


def test_the_manifest_of_another_snapshot(folder: Path) -> None:
    shutil.copyfile(folder.parent / "2" / "manifest.json", folder / "manifest.json")
    with pytest.raises(SnapshotError, match=r"sha256 is not the one|bytes long, the manifest says"):
        ModelVersions(folder.parent).open(1)


@pytest.mark.parametrize("file", ["weights.safetensors", "sums.safetensors", "states/inputs.npy"])
def test_a_file_of_another_snapshot_with_hashes_that_fit(folder: Path, file: str) -> None:
    """Of the same shapes: only recomputing the sums of a sample of rows can tell."""
    shutil.copyfile(folder.parent / "2" / file, folder / file)
    forge(folder, unchanged)
    refused(folder, "sums.safetensors", "does not follow from the weights and the node states", "sizes")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda sums: sums["key_value"].fill(np.nan), "key_value holds NaN or infinity"),
        (lambda sums: sums["key"].fill(np.inf), "key holds NaN or infinity"),
        (lambda sums: sums.update(count=np.asarray(59)), "counts 59 rows, expected 60"),
        (lambda sums: sums.update(key=sums["key"].astype(np.float32)), "key is float32"),
        (lambda sums: sums.update(extra=np.zeros(1)), "holds .*extra"),
        (lambda sums: sums.pop("query_square"), "expected .*query_square"),
    ],
)
def test_sums_that_cannot_be(folder: Path, change: Callable[[Any], Any], reason: str) -> None:
    sums = load_file(folder / "sums.safetensors")
    change(sums)
    save_file(sums, folder / "sums.safetensors")
    forge(folder, unchanged)
    refused(folder, "sums.safetensors", reason)


@pytest.mark.parametrize(
    ("file", "place", "value", "reason"),
    [
        ("graph/indices.npy", 3, 60, "names a node outside 0 to 59"),
        ("graph/indices.npy", 3, -1, "names a node outside 0 to 59"),
        ("graph/indices.npy", 1, 0, "has a list of neighbours that does not rise"),
        ("graph/indptr.npy", 0, 1, "runs from 1 to"),
        ("graph/indptr.npy", 30, 0, "falls somewhere"),
        ("states/degrees.npy", 2, 99, "does not agree with graph/indptr.npy"),
    ],
)
def test_arrays_that_are_no_graph(folder: Path, file: str, place: int, value: int, reason: str) -> None:
    array = np.load(folder / file)
    array[place] = value
    np.save(folder / file, array)
    forge(folder, unchanged)
    refused(folder, file, reason)


def test_a_file_that_may_not_be_read() -> None:
    """Root may read everything, so root asks as nobody."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        publish(Store(f"{root}/store"))
        (Path(root) / "store" / "demo" / "1" / "states" / "layer_1.npy").chmod(0)
        code = (
            "import os, sys; from model_store import Store, SnapshotError\n"
            "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            f"try: Store({root + '/store'!r}).model('demo').open(1)\n"
            "except SnapshotError as error: print(error)"
        )
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert result.stdout.strip() == "layer_1.npy: cannot be read: Permission denied"


PUBLISH = """
import resource, signal, sys
from model_store import Store
from tests.model_store.samples import publish
{limit}
try:
    publish(Store(sys.argv[1]), seed=5)
except OSError as error:
    print(error.strerror)
"""


def test_no_space_while_publishing(versions: ModelVersions) -> None:
    """The kernel lets no file grow past 1,000 bytes: the states (1,088) do not fit."""
    limit = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))"
    command = [sys.executable, "-c", PUBLISH.format(limit=limit), str(versions.folder.parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "File too large"
    assert versions.versions() == [1, 2]
    assert not list(versions.folder.glob(".publishing*"))
    versions.open(2).close()


def test_a_full_disk_while_publishing(versions: ModelVersions, tmp_path: Path) -> None:
    """A real file system with 64 kB, in a mount namespace of its own: needs no root where user namespaces are allowed."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = [
        "unshare",
        "--mount",
        "--map-root-user",
        "sh",
        "-c",
        'mount -t tmpfs -o size=64k none "$1" && shift && "$@"',
        "sh",
    ]
    if subprocess.run([*mount, str(disk), "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine allows no mount namespaces: a full disk was NOT tested (a file size limit was)")
    check = "assert store.models() == []\nimport os; assert sorted(os.listdir(sys.argv[1] + '/demo')) == ['.lock']"
    code = (
        PUBLISH.format(limit="store = Store(sys.argv[1]); open(sys.argv[1] + '/ballast', 'wb').write(b'x' * 45000)") + check
    )
    result = subprocess.run(
        [*mount, str(disk), sys.executable, "-c", code, str(disk)], capture_output=True, text=True, check=False
    )
    assert (result.stdout.strip(), result.returncode) == ("No space left on device", 0), result.stderr
