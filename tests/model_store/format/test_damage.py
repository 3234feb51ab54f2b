"""Damaged snapshots and paths that point outside the store are refused; the error names the file.

truncated · a flipped byte in any file · links, pipes and `..` · extra and missing files · another snapshot's manifest ·
no permission · no space
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from model_store import InvalidName, ModelVersions, NodeIds, SnapshotError, Store, UnknownModel, UnknownVersion
from tests.model_store.format.abuse import refused
from tests.model_store.samples import FILES, NODES, publish, small_contents


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
    refused(folder, file, "the sha256 differs from the manifest")


def test_a_flipped_byte_in_an_optional_file(store: Store) -> None:
    contents = small_contents(1, node_ids=NodeIds.build([f"node-{row}" for row in range(NODES)]), report="<p>a report</p>")
    store.publish("demo", contents)
    folder, versions = store.root / "demo" / "1", store.model("demo")
    for file in ("model.onnx", "report.html", "graph/node_ids.npy", "graph/node_order.npy"):
        original = (folder / file).read_bytes()
        data = bytearray(original)
        data[len(data) // 2] ^= 1
        (folder / file).write_bytes(data)
        with pytest.raises(SnapshotError, match="the sha256 differs from the manifest") as caught:
            versions.open(1)
        assert caught.value.file == file
        (folder / file).write_bytes(original)
    versions.open(1).close()


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
        if same:  # the flipped bit changed only white space
            continue
        path.write_bytes(data)
        with pytest.raises(SnapshotError):
            ModelVersions(folder.parent).open(1, "sizes")


@pytest.mark.parametrize("file", [*FILES, "manifest.json"])
def test_a_symbolic_link_in_place_of_a_file(folder: Path, file: str) -> None:
    (folder / file).rename(folder.parent / "elsewhere")
    (folder / file).symlink_to(folder.parent / "elsewhere")
    refused(folder, file, "cannot be read" if file == "manifest.json" else "is not a regular file")


def test_a_symbolic_link_in_place_of_a_folder(folder: Path) -> None:
    (folder / "states").rename(folder.parent / "elsewhere")
    (folder / "states").symlink_to(folder.parent / "elsewhere")
    refused(folder, "states", "is not a regular file")
    folder.rename(folder.with_name("moved"))
    folder.symlink_to(folder.with_name("moved"))
    refused(folder, "1", "is a symbolic link")


def test_a_model_folder_that_is_a_link(versions: ModelVersions, tmp_path: Path) -> None:
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
def test_model_names_that_could_point_outside_the_store(store: Store, name: str) -> None:
    with pytest.raises(InvalidName, match="a model cannot be called"):
        store.model(name)
    with pytest.raises(InvalidName):
        publish(store, model=name)


@pytest.mark.parametrize("version", ["..", "0", "-1", "1/../2", "01", "1.0", " 1", "x", True, 0, 10**9])
def test_invalid_version_numbers(versions: ModelVersions, version: Any) -> None:
    for use in (versions.open, versions.manifest, versions.activate):
        with pytest.raises(InvalidName, match="is not a version"):
            use(version)


def test_an_unknown_version(versions: ModelVersions) -> None:
    with pytest.raises(UnknownVersion, match="there is no version 7 of demo"):
        versions.open(7)
    with pytest.raises(UnknownVersion, match=r"there is no version 7 of demo \(existing versions: 1, 2\)"):
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
    refused(folder, "states/pipe", "is not a regular file")
    (folder / "manifest.json").unlink()
    os.mkfifo(folder / "manifest.json")
    refused(folder, "manifest.json", "is not a regular file")


def test_a_folder_that_the_format_does_not_know(folder: Path) -> None:
    (folder / "states" / "more").mkdir()
    refused(folder, "states/more", "is a folder that is not part of the format")


def test_the_manifest_of_another_snapshot(folder: Path) -> None:
    shutil.copyfile(folder.parent / "2" / "manifest.json", folder / "manifest.json")
    with pytest.raises(SnapshotError, match=r"sha256 differs from the manifest|bytes long, the manifest says"):
        ModelVersions(folder.parent).open(1)


def test_a_file_without_read_permission() -> None:
    """An unreadable file is not reported as damaged. Root can read every file, so root runs this as the user nobody."""
    with tempfile.TemporaryDirectory() as root:
        Path(root).chmod(0o755)
        publish(Store(f"{root}/store"))
        (Path(root) / "store" / "demo" / "1" / "states" / "layer_1.npy").chmod(0)
        code = (
            "import os, sys; from model_store import Store, StoreUnavailable\n"
            "if os.getuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
            f"try: Store({root + '/store'!r}).model('demo').open(1)\n"
            "except StoreUnavailable as error: print(error)"
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
