"""`sgf-train import`: makes a graph folder from data that may exceed memory."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from tqdm import tqdm

from model_store import Manifest, Store
from model_store.cli.terminal import default_log
from model_store.run_contract import FinishedEvent
from training.cli.events import EventWriter
from training.cli.options import ImportOptions, Options
from training.cli.terminal import chosen_reading, live_manifest, print_notes, print_result
from training.data.graph_folder.importing import import_graph
from training.data.graph_folder.manifest import GraphManifest

BAR = "{desc} {percentage:3.0f}% |{bar}| {n_fmt}/{total_fmt}, {remaining} left"


def import_data(options: ImportOptions, events: EventWriter) -> int:
    earlier: Manifest | None = None
    if options.model:
        earlier = live_manifest(Store(options.store, redis=default_log()), options.model)
    reading, schema = chosen_reading(options, earlier)
    with StageBar(options) as report:
        manifest = import_graph(options.path, options.out, reading, options.task, schema, report)
    print_notes(manifest.notes)
    size = sum(entry.size for entry in manifest.arrays.values())
    result = {
        "folder": str(options.out),
        "nodes": manifest.nodes,
        "edges": manifest.edges,
        "features": manifest.width,
        "given": vars(manifest.given),
        "task": manifest.task,
        "bytes": size,
        "notes": list(manifest.notes),
    }
    events.write(FinishedEvent(result=result))
    print_result(options, result, _describe(options, manifest, size))
    return 0


def _describe(options: ImportOptions, manifest: GraphManifest, size: int) -> str:
    left_out = f" (of {manifest.given.entries:,} entries: {manifest.given})" if str(manifest.given) else ""
    labels = f"labels for {manifest.task}" if manifest.task else "no labels"
    return (
        f"{options.out}: {manifest.nodes:,} nodes with {manifest.width:,} features, {manifest.edges:,} edges{left_out}, "
        f"{labels}; {size / 1e6:,.1f} MB\n"
        f"next: sgf-train {'' if manifest.task else 'refresh '}--data {options.out}"
    )


class StageBar:
    """A progress bar for every stage of an import, on a terminal."""

    def __init__(self, options: Options) -> None:
        self._disable = True if options.json or options.quiet else None  # None: no bar unless stderr is a terminal
        self._bar: tqdm | None = None

    def __call__(self, stage: str, done: int, total: int) -> None:
        if self._bar is None or self._bar.desc != stage:
            self.close()
            self._bar = tqdm(total=total, desc=stage, bar_format=BAR, unit_scale=True, disable=self._disable)
            self._bar.desc = stage  # a disabled bar does not set it
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()
