"""The demo model: a snapshot of handwritten digits that ships with the package, so that serving it needs no torch.

`sgf-models demo` installs it, and `sgf-serve --demo` installs and serves it. In the store, the demo is an ordinary version 1
of the model `digits`. `make demo-snapshot` trains it again and packs it.
"""

from __future__ import annotations

import errno
import tempfile
import zipfile
from pathlib import Path

from model_store.store import Store
from model_store.versions.durable import make_folder, sync, sync_tree

MODEL = "digits"
ARCHIVE = Path(__file__).with_name("demo.zip")
ZIP_TIME = (1980, 1, 1, 0, 0, 0)
"""The same time stamp for every file, so that packing a folder twice gives the same bytes."""


def install_demo(root: Path) -> bool:
    """Installs and activates the demo as version 1 of the model `digits`. Returns False if the store has this model already.

    The model appears in the store complete, by one rename, or not at all. Processes may call this at the same time.

    Raises:
        StoreError: the packed snapshot does not pass its checks.
        OSError: the store cannot be written.
    """
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
