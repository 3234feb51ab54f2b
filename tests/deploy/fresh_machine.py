"""`make verify-deploy` on a machine that has nothing: `python -m tests.deploy.fresh_machine FOLDER`, as root.

debootstrap makes a Debian with git, make and Python in the folder, and the last commit is cloned into it; everything else is
what the project's own files install. What it needs of this machine to reach package registries (registry.py) is mounted.
Mounts and processes are in namespaces of their own and end with the run; the folder, some 15 GB, stays to be looked at.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.deploy import registry
from tests.deploy.image import MIRROR, RELEASE
from tests.deploy.tools import ROOT, need, run

GIVEN = ("ca-certificates", "git", "make", "python3", "python3-venv")
ENVIRON = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
INSIDE = r"""
set -eu
mount --bind {root} {root}
mount -t proc proc {root}/proc
mount --rbind /sys {root}/sys
mount --rbind /dev {root}/dev
{mounts}
mkdir -p {root}/before
cd {root}
pivot_root . before
umount --lazy /before
cd /srv/clone
exec make verify-deploy
"""
"""A root of its own, by pivot_root: in a mere chroot nothing could be mounted privately, and buildah mounts."""


def make(root: Path) -> None:
    """The machine. Raises AssertionError with the output of what failed."""
    debootstrap = need("debootstrap")
    run(debootstrap, "--variant=minbase", f"--include={','.join(GIVEN)}", RELEASE, root, *MIRROR, seconds=900)
    for name in ("hosts", "resolv.conf"):
        shutil.copy(Path("/etc") / name, root / "etc" / name)
    run("git", "clone", "--quiet", ROOT, root / "srv" / "clone")


def verify(root: Path) -> int:
    """The exit code of `make verify-deploy` inside; what it prints is printed."""
    with tempfile.TemporaryDirectory(prefix="registry-") as folder:
        mounts = [_mount(here, root / inside.relative_to("/")) for here, inside in registry.mounts(Path(folder)).items()]
        script = INSIDE.format(root=shlex.quote(str(root)), mounts="\n".join(mounts))
        environ = ENVIRON | {name: value for name, value in os.environ.items() if name == "DEBIAN_MIRROR"}
        isolated = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]
        return subprocess.run(isolated, env=environ, check=False).returncode


def _mount(here: Path, inside: Path) -> str:
    """The command; what it mounts over is made."""
    folder = inside if here.is_dir() else inside.parent
    folder.mkdir(parents=True, exist_ok=True)
    if here.is_file():
        inside.touch()
    return shlex.join(["mount", "--bind", "-o", "ro", str(here), str(inside)])


if __name__ == "__main__":
    place = Path(sys.argv[1]).resolve()
    make(place)
    sys.exit(verify(place))
