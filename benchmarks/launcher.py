"""`sgf-serve` with another HTTP protocol.

python -m benchmarks.launcher MODULE:CLASS [flags of sgf-serve]

Imports only the command of the service: uvicorn imports the protocol by its name.
"""

from __future__ import annotations

import sys
from typing import Any

import uvicorn

from service.__main__ import main

if __name__ == "__main__":
    protocol, *arguments = sys.argv[1:]
    run = uvicorn.run

    def run_with_protocol(application: str, **options: Any) -> None:
        run(application, **(options | {"http": protocol}))

    uvicorn.run = run_with_protocol  # type: ignore[assignment]  # the service calls `uvicorn.run`
    sys.exit(main(arguments))
