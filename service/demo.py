"""The demo model: a snapshot of handwritten digits that ships with the package, so that serving it needs no torch.

    python -m service.demo                  installs the demo into SGF_STORE if the store has no model, and exits
    python -m service.demo --pack FOLDER    packs a version folder as the demo (`make demo-snapshot`)

`sgf-serve --demo` installs and serves it. In the store, the demo is an ordinary version 1 of the model `digits`.
"""

from __future__ import annotations

import argparse
import errno
import json
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from service.settings import Settings, SettingsError

MODEL = "digits"
ARCHIVE = Path(__file__).with_name("demo.zip")
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The same time stamp for every file, so that packing a folder twice gives the same bytes."""
QUESTION = {
    "probabilities": False,
    "top_k": 1,
    "new_nodes": [
        {
            "id": "drawn",
            "neighbors": [92, 1119, 1111, 1049],
            "features": {"indices": [12, 20, 27, 28, 35, 36, 43, 44, 51, 52, 60], "values": [1] * 11},
        }
    ],
}
"""A drawn 1 that is not in the graph, with four similar digits as its neighbours."""
READY_SECONDS, POLL_SECONDS = 120.0, 0.1


def install_demo(root: Path) -> bool:
    """Installs the demo as version 1 of the model `digits`, live. Returns False if the store has this model already.

    The model appears in the store complete, by one rename, or not at all. Processes may call this at the same time.

    Raises:
        StoreError: the packed snapshot does not pass its checks.
        OSError: the store cannot be written.
    """
    from model_store import Store  # here: it loads numpy, and `sgf-serve` limits numpy's threads before that
    from model_store.versions.durable import make_folder, sync, sync_tree

    if MODEL in Store(root).models():
        return False
    make_folder(root)
    with tempfile.TemporaryDirectory(prefix=".demo-", dir=root) as name:
        folder = Path(name) / MODEL
        with zipfile.ZipFile(ARCHIVE) as archive:
            archive.extractall(folder / "1")
        Store(name).model(MODEL).activate(1)  # verifies every file and replays the probes
        sync_tree(folder)
        try:
            folder.rename(root / MODEL)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            return False  # another process installed the demo, or is publishing a first version
    sync(root)
    return True


def pack_demo(folder: Path) -> None:
    """Packs a version folder as the demo that ships with the package."""
    with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(path.relative_to(folder).as_posix(), ZIP_TIME)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, 0o644 << 16
            archive.writestr(entry, path.read_bytes())


def announce_when_ready(host: str, port: int) -> None:
    """Starts a thread that prints the address and one curl command when the service is ready."""
    address = f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port}"  # noqa: S104  # compared, not bound
    text = f"The demo is served on {address}. Send it a drawn digit from another terminal:\n\n{curl_command(address)}\n"
    threading.Thread(target=_announce, args=(address, text), name="announce", daemon=True).start()


def curl_command(address: str) -> str:
    return f"curl {address}/predict --json '{json.dumps(QUESTION)}'"


def _announce(address: str, text: str) -> None:
    give_up_at = time.monotonic() + READY_SECONDS
    while time.monotonic() < give_up_at:
        try:
            with urlopen(f"{address}/health/ready", timeout=5):  # noqa: S310  # an address of our own
                sys.stdout.write(f"\n{text}\n")
                sys.stdout.flush()
                return
        except (URLError, OSError):  # not listening yet, or 503
            time.sleep(POLL_SECONDS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        "python -m service.demo", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="a version folder, such as build/demo/digits/1")
    options = parser.parse_args(arguments)
    if options.pack is not None:
        pack_demo(options.pack)
        sys.stdout.write(f"packed {options.pack} ({ARCHIVE.stat().st_size:,} bytes)\n")
        return 0
    from model_store import Store, StoreError

    try:
        root = Settings.from_env().store
        if models := Store(root).models():
            sys.stdout.write(f"the store has {', '.join(models)}: the demo is not installed\n")
        elif install_demo(root):
            sys.stdout.write(f"installed the demo as version 1 of {MODEL}\n")
    except (SettingsError, StoreError, OSError) as error:
        sys.stderr.write(f"service.demo: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
