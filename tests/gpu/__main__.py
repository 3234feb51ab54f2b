"""`make verify-gpu`: compares a GPU with the CPU and prints a table. Exit code 0 if all checks passed, 1 if one has not, and
2 without a GPU.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch

from sgformer.device import DeviceError, choose_device
from tests.gpu.checks import all_checks

ROW = "{:<44}{:<22}{:<16}{}\n"


def verify(wanted: str = "cuda") -> int:
    try:
        choose_device(wanted)
    except DeviceError as error:
        sys.stderr.write(f"NOT RUN: {error}\n")
        return 2
    gpus = torch.cuda.device_count() if wanted == "cuda" else 2
    names = ", ".join(torch.cuda.get_device_name(number) for number in range(gpus)) if wanted == "cuda" else wanted
    sys.stdout.write(f"torch {torch.__version__}; {names}\n" + ROW.format("check", "must be", "is", ""))
    checks = []
    with tempfile.TemporaryDirectory() as folder:
        for check in all_checks(wanted, gpus, Path(folder)):
            checks.append(check)
            sys.stdout.write(ROW.format(check.name, check.expected, check.seen, "ok" if check.passed else "WRONG"))
            sys.stdout.flush()
    passed = sum(check.passed for check in checks)
    sys.stdout.write(f"{passed} of {len(checks)} checks passed\n")
    return int(passed < len(checks))


if __name__ == "__main__":
    sys.exit(verify(*sys.argv[1:]))
