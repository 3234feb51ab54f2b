"""Where things lie on this machine is not shown, however it is written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from service.jobs.redaction import Redaction

REDACTION = Redaction(Path("/srv/my models"), Path("/data"), Path("/opt/venv"))


@pytest.mark.parametrize(
    ("told", "shown"),
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
def test_paths_are_not_shown(told: str, shown: str) -> None:
    assert REDACTION.text(told) == shown


def test_texts_of_a_line_of_json_are_cleaned_as_they_are_meant() -> None:
    """As JSON, a newline is a backslash and an n, behind which a path looks like the rest of a word."""
    line = json.dumps({"event": "failed", "error": 'in\n/home/a/b\n"/home/c d/e"', "more": [{"at": "/home/a"}, 1, None]})
    assert json.loads(REDACTION.line(line)) == {
        "event": "failed",
        "error": 'in\n.../b\n".../e"',
        "more": [{"at": ".../a"}, 1, None],
    }
    assert REDACTION.line('{"event": "epo /home/a/b') == '{"event": "epo .../b', "cut short"
