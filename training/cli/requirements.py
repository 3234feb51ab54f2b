"""Ends the program with one sentence if the packages of the extra `train` are not installed.

`training.__main__` imports this module first: a user who installed the service alone gets a sentence, not a traceback.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

PACKAGES = ("torch", "sklearn", "tqdm")
"""Imported by every command; the other packages of the extra are imported where they are used."""

missing = [package for package in PACKAGES if find_spec(package) is None]
if missing:
    how = "pip install 'sgformer-serving[train]', or make install in a clone"
    sys.stderr.write(f"sgf-train: training needs {', '.join(missing)}: {how}\n")
    sys.exit(2)
