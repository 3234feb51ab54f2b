"""deploy/serving.lock has what the serving image needs, in the versions of constraints.txt, with hashes and no addresses."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.deploy.tools import ROOT

LOCK = (ROOT / "deploy" / "serving.lock").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
DOCKERFILE = (ROOT / "Dockerfile").read_text()


def plain(name: str) -> str:
    """As the package registry compares names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(text: str) -> dict[str, str]:
    return {plain(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}


def complaints(lock: str) -> list[str]:
    constraints = pinned((ROOT / "constraints.txt").read_text())
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["cpu"]]
    needed += PROJECT["build-system"]["requires"]
    names = {plain(re.split(r"[\[<>=~ ]", one)[0]) for one in needed}
    found = [f"{name} is not locked" for name in sorted(names - pinned(lock).keys())]
    found += [f"{name} is not {constraints.get(name)}" for name, one in pinned(lock).items() if one != constraints.get(name)]
    entries = re.split(r"\n+(?! )", re.sub(r"(?m)^#.*\n", "", lock).strip())
    found += [f"{entry[:30]} has no hash" for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)]
    return found + [f"the lock has {one}" for one in re.findall(r"--(?:index|extra|find|trusted)\S*|\w+://\S*", lock)]


def test_the_lock_is_complete() -> None:
    assert complaints(LOCK) == []


@pytest.mark.parametrize(
    ("right", "wrong", "told"),
    [
        (r"(?m)^numpy==.*\n(    .*\n)+", "", "numpy is not locked"),
        (r"(?m)^numpy==\S+", "numpy==0.0.1", "numpy is not"),
        (r"(?m)^orjson==(\S+).*\n(    .*\n)+", r"orjson==\1\n", "orjson==.* has no hash"),
        (r"\A", "--find-links /srv/wheels\n", "the lock has --find-links"),
        (r"\A", "--index-url https://registry.example/simple\n", "the lock has https://registry.example"),
    ],
)
def test_a_lock_that_is_not_complete_is_found(right: str, wrong: str, told: str) -> None:
    broken = re.sub(right, wrong, LOCK, count=1)
    assert broken != LOCK
    assert re.search(told, "\n".join(complaints(broken)))


def test_the_serving_image_installs_nothing_without_a_hash() -> None:
    """For a CPU; for a GPU torch comes from the registry, in the version of constraints.txt."""
    stage = DOCKERFILE.split("FROM build AS build-serving")[1].split("FROM ")[0]
    assert 'if [ "$VARIANT" = cpu ]; then set -- --require-hashes -r serving.lock;' in stage
    assert 'if [ "$VARIANT" = cpu ]; then set -- --no-build-isolation; fi' in stage
