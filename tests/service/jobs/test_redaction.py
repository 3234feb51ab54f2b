"""Absolute paths are redacted, however they are written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.jobs.job_folder import Redaction

REDACTION = Redaction(Path("/srv/my models"), Path("/data"), Path("/opt/venv"))


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (
            'File "/srv/models/.venv/lib/x.py", line 3: cannot read /var/graph.npz: 1/2 of https://host/path; and/or',
            'File ".../x.py", line 3: cannot read .../graph.npz: 1/2 of https://host/path; and/or',
        ),
        ("no space in /srv/my models/demo", "no space in .../demo"),
        ("cannot open /data", "cannot open ..."),
        ("cannot open /home", "cannot open .../home"),
        ("/data.old/x and /database/y", ".../x and .../y"),
        ("file:///data/x, file:///home/a/b", ".../x, .../b"),
        ("No such file: '/home/some body/x.npz'", "No such file: '.../x.npz'"),
        ("https://host/data stays", "https://host/data stays"),
        ("/opt/venv/lib/python3/numpy.py", ".../lib/python3/numpy.py"),
    ],
)
def test_absolute_paths_are_redacted(text: str, redacted: str) -> None:
    assert REDACTION.text(text) == redacted


def test_each_string_of_a_json_line_is_redacted() -> None:
    """JSON writes a newline as a backslash and an n, after which a path looks like the rest of a word."""
    line = json.dumps({"event": "failed", "error": 'in\n/home/a/b\n"/home/c d/e"', "more": [{"at": "/home/a"}, 1, None]})
    assert json.loads(REDACTION.line(line)) == {
        "event": "failed",
        "error": 'in\n.../b\n".../e"',
        "more": [{"at": ".../a"}, 1, None],
    }
    assert REDACTION.line('{"event": "epo /home/a/b') == '{"event": "epo .../b', "a truncated line"
