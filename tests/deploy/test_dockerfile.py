"""The Dockerfile and the lock file of the serving image. test_images.py builds and runs the images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.deploy.deployment_files import DOCKERFILE, PROJECT, compose, env_example
from tests.deploy.tools import ROOT, need, run

LOCK = (ROOT / "deploy" / "serving.lock").read_text()
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"


def test_hadolint_accepts_the_dockerfile() -> None:
    run(need("hadolint"), ROOT / "Dockerfile")


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("FROM debian:${DEBIAN}", "FROM debian"),
        ('ENTRYPOINT ["sgf-serve"]', "ENTRYPOINT sgf-serve"),
        ("COPY service /service", "ADD service /service"),
        ("apt-get install -y --no-install-recommends python3 ", "apt-get install python3 "),
    ],
)
def test_hadolint_rejects_a_broken_dockerfile(tmp_path: Path, right: str, wrong: str) -> None:
    assert right in DOCKERFILE
    (tmp_path / "Dockerfile").write_text(DOCKERFILE.replace(right, wrong))
    with pytest.raises(AssertionError, match="hadolint failed"):
        run(need("hadolint"), tmp_path / "Dockerfile")


def test_the_build_context_has_only_what_is_copied() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    assert kept == {name for names in copied for name in names.split()}


def test_the_labels_have_the_version_of_the_project() -> None:
    assert re.findall(r"^ARG VERSION(.*)$", DOCKERFILE, re.MULTILINE) == [f"={PROJECT['project']['version']}", "", ""]


def stage(name: str) -> str:
    return DOCKERFILE.split(f" AS {name}\n")[1].split("\nFROM ")[0]


def test_the_workers_torch_is_a_cpu_build_by_default() -> None:
    """By Compose, by `docker build`, and in the example; VARIANT=gpu of the serving image needs torch for CUDA."""
    assert f"\nARG TORCH_INDEX_URL={TORCH_INDEX}\n" in stage("build-worker")
    assert compose()["services"]["worker"]["build"]["args"] == {"TORCH_INDEX_URL": f"${{TORCH_INDEX_URL-{TORCH_INDEX}}}"}
    assert env_example()["TORCH_INDEX_URL"] == TORCH_INDEX
    assert DOCKERFILE.count("TORCH_INDEX_URL") == stage("build-worker").count("TORCH_INDEX_URL")


def test_the_serving_image_installs_nothing_without_a_hash() -> None:
    """For a CPU. For a GPU, torch comes from the registry, in the version of constraints.txt."""
    assert 'if [ "$VARIANT" = cpu ]; then set -- --require-hashes -r serving.lock;' in stage("build-serving")
    assert 'if [ "$VARIANT" = cpu ]; then set -- --no-build-isolation; fi' in stage("build-serving")


def normalize(name: str) -> str:
    """A name as the package registry compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned_versions(text: str) -> dict[str, str]:
    return {normalize(name): version for name, version in re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.MULTILINE)}


def find_lock_errors(lock: str) -> list[str]:
    constraints, locked = pinned_versions((ROOT / "constraints.txt").read_text()), pinned_versions(lock)
    needed = [*PROJECT["project"]["dependencies"], *PROJECT["project"]["optional-dependencies"]["cpu"]]
    names = {normalize(re.split(r"[\[<>=~ ]", text)[0]) for text in (*needed, *PROJECT["build-system"]["requires"])}
    errors = [f"{name} is not locked" for name in sorted(names - locked.keys())]
    errors += [f"{name} is not {constraints.get(name)}" for name in locked if locked[name] != constraints.get(name)]
    entries = re.split(r"\n+(?! )", re.sub(r"(?m)^#.*\n", "", lock).strip())
    errors += [f"{entry[:30]} has no hash" for entry in entries if not re.search(r"--hash=sha256:[0-9a-f]{64}", entry)]
    return errors + [f"the lock has {text}" for text in re.findall(r"--(?:index|extra|find|trusted)\S*|\w+://\S*", lock)]


def test_the_lock_is_complete_with_hashes_and_without_addresses() -> None:
    assert find_lock_errors(LOCK) == []


@pytest.mark.parametrize(
    ("right", "wrong", "error"),
    [
        (r"(?m)^numpy==.*\n(    .*\n)+", "", "numpy is not locked"),
        (r"(?m)^numpy==\S+", "numpy==0.0.1", "numpy is not"),
        (r"(?m)^orjson==(\S+).*\n(    .*\n)+", r"orjson==\1\n", "orjson==.* has no hash"),
        (r"\A", "--find-links /srv/wheels\n", "the lock has --find-links"),
        (r"\A", "--index-url https://registry.example/simple\n", "the lock has https://registry.example"),
    ],
)
def test_a_broken_lock_is_found(right: str, wrong: str, error: str) -> None:
    assert re.search(error, "\n".join(find_lock_errors(re.sub(right, wrong, LOCK, count=1))))
