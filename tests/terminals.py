"""Programs in a pseudo-terminal, as a person runs them."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from typing import Self

COLOUR = re.compile(r"\x1b\[\d+m")


class Terminal:
    """One program in a terminal of this width, until the end of a `with` block."""

    def __init__(self, *command: str, columns: int = 80, **environ: str) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SGF_", "NO_COLOR", "COLUMNS"))}
        self._terminal, side = os.openpty()
        fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # Ctrl-C becomes SIGINT for all of its processes
            env=kept | {"TERM": "xterm"} | environ,
        )
        os.close(side)
        self.text = ""
        """Everything that the program wrote, with colours; a line ends with \\n."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._terminal)

    @property
    def plain(self) -> str:
        return COLOUR.sub("", self.text)

    def read_until(self, pattern: str, seconds: float = 60) -> re.Match[str]:
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.plain)):
            assert time.monotonic() < end, f"no {pattern!r} in:\n{self.text}"
            assert self._read(), f"ended without {pattern!r}:\n{self.text}"
        return found

    def press_ctrl_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def wait(self, seconds: float = 60) -> int:
        """Reads to the end. Returns the exit code."""
        end = time.monotonic() + seconds
        while self._read():
            assert time.monotonic() < end, f"does not end:\n{self.text}"
        return self.process.wait(seconds)

    def _read(self) -> bool:
        """False if all processes have closed the terminal."""
        poll = select.poll()  # `select.select` takes no descriptor above 1,023
        poll.register(self._terminal, select.POLLIN)
        if not poll.poll(100):
            return True
        try:
            data = os.read(self._terminal, 65_536)
        except OSError:  # EIO: Linux reports the end so
            return False
        self.text += data.decode().replace("\r\n", "\n")
        return bool(data)
