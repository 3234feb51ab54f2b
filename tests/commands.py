"""The commands of the documentation pages, and the shell that runs them.

A command is in a fenced `sh` block. It runs unchanged, with its comments and line breaks.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    language: str
    text: str


class Command(NamedTuple):
    page: str
    text: str


def blocks_of(root: Path, page: str) -> list[Block]:
    """A `text` block directly below an `sh` block is the output of its last command."""
    text, blocks, end = (root / page).read_text(), list[Block](), 0
    for fence in FENCE.finditer(text):
        language, content = fence.groups()
        if language == "text" and blocks and blocks[-1].language == "sh" and not text[end : fence.start()].strip():
            language = "output"
        blocks.append(Block(language, content))
        end = fence.end()
    return blocks


def commands_of(root: Path, page: str) -> list[Command]:
    return [Command(page, text) for block in blocks_of(root, page) if block.language == "sh" for text in split(block.text)]


def split(block: str) -> list[str]:
    """The commands of a block. A command has several lines if a quote is open or a backslash ends the line."""
    commands, begun = [], ""
    for line in block.splitlines():
        begun += line
        try:
            words = shlex.split(begun, comments=True)
        except ValueError:  # an open quote, or a backslash
            begun += "\n"
            continue
        if words:
            commands.append(begun)
        begun = ""
    assert not begun, f"a command does not end: {begun}"
    return commands


def trailing_prose(command: str) -> str | None:
    """The text after two or more spaces, outside of quotes and comments, which the shell would read as arguments."""
    bare = re.sub(r"\s*\\\n\s*", " ", command)
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "''", bare)
    gap = re.search(r"\S\s{2,}(\S.*)", re.sub(r"(^|\s)#.*", "", bare))
    return gap and gap[1].rstrip()


class Shell:
    """A bash process in a folder, for one page: what a command exports or starts remains for the next command.

    The caller must close it, which ends every process that was started in it.
    """

    def __init__(self, folder: Path, port: int, **environ: str) -> None:
        """Port 8000 of the pages is `port` here. The SGF_* settings and the environment of the test run are removed."""
        self.folder, self.port = folder, port
        self.files = folder / "shell"
        self.files.mkdir(parents=True)
        curl = ("fail-with-body", "silent", "show-error", f'connect-to = "localhost:8000:127.0.0.1:{port}"')
        (self.files / ".curlrc").write_text("\n".join(curl))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "VIRTUAL_ENV"))}
        programs = Path(sys.executable).parent
        kept["PATH"] = ":".join(part for part in kept["PATH"].split(":") if Path(part) != programs)
        self._bash = subprocess.Popen(
            ["/bin/bash", "--noprofile", "--norc"],
            stdin=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=kept | {"SGF_PORT": str(port), "CURL_HOME": str(self.files)} | environ,
            start_new_session=True,
        )
        self._count, self._serving = 0, 0
        self._feed("set -m")  # every background command gets a process group of its own

    def run(self, command: str, seconds: float = 300, fails: bool = False) -> str:
        """Returns the output. Raises AssertionError with it if the command fails, or if `fails` and it does not."""
        self._count += 1
        code, out, err = (self.files / f"{self._count}.{kind}" for kind in ("code", "out", "err"))
        self._feed(f"{{ {command}\n}} </dev/null >{out} 2>{err}; echo $? >{code}")
        end = time.monotonic() + seconds
        while not (code.exists() and code.read_text().endswith("\n")):
            assert self._bash.poll() is None, f"{command}\nended the shell: {_output(out, err)}"
            assert time.monotonic() < end, f"{command}\ntook more than {seconds} s: {_output(out, err)}"
            time.sleep(0.01)
        did = "did not fail: 0\n" if fails else f"failed with {code.read_text()}"
        assert (code.read_text() != "0\n") == fails, f"{command}\n{did}{_output(out, err)}"
        return out.read_text()

    def serve(self, command: str) -> None:
        """Runs a command in the background until `stop_serving`."""
        self.stop_serving()
        log = self.files / "serving.log"
        self._serving = int(self.run(f"{{ {command}\n}} >{log} 2>&1 & echo $!"))

    def serves(self) -> bool:
        return bool(_living(group=self._serving))

    def log(self) -> str:
        return (self.files / "serving.log").read_text()

    def stop_serving(self) -> None:
        if self._serving:
            with suppress(ProcessLookupError):
                os.killpg(self._serving, signal.SIGTERM)
            _wait_for_the_end(group=self._serving, seconds=30)
            assert not self.serves(), f"the service did not end: {self.log()}"
            self._serving = 0

    def close(self) -> None:
        """Ends every process of the session: a retraining continues after the end of its service."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            for process in _living(session=self._bash.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, sign)
            _wait_for_the_end(session=self._bash.pid)
        self._bash.communicate(timeout=10)

    def _feed(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text + "\n")
        self._bash.stdin.flush()


def _output(*files: Path) -> str:
    return "\n".join(file.read_text()[-6000:] for file in files if file.exists())


def _living(session: int | None = None, group: int | None = None) -> list[int]:
    """The running processes of a session or a group, without zombies (Z)."""
    processes = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _parent, its_group, its_session, *_ = stat.read_text().rpartition(")")[2].split()
            if state != "Z" and (int(its_session) == session or int(its_group) == group):
                processes.append(int(stat.parent.name))
    return processes


def _wait_for_the_end(session: int | None = None, group: int | None = None, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while _living(session, group) and time.monotonic() < end:
        time.sleep(0.02)
