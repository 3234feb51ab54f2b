"""The drift of a version: sampled requests and the live graph, compared with the training graph, kind by kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from service.engines.served_model import ServedModel
from service.monitoring.graph_counts import MIN_CHANGE, GraphCounts
from service.monitoring.reference import Reference
from service.monitoring.request_counts import RequestCounts
from service.telemetry.metrics import REQUEST_DRIFT
from sgformer.histograms import Counts, ks, psi_by_bin, psi_threshold
from sgformer_client.answers import DriftKind, DriftPart

GRAPH = "graph_"
SUMS = "graph_sums"
MAX_WORST = 5


class Names(NamedTuple):
    """The names of the columns of a kind of drift; of its bins if it has one column."""

    columns: Sequence[int | str] = ()
    bins: Sequence[int | str] = ()


NO_NAMES = Names()


class VersionDrift:
    def __init__(self, model: ServedModel, reference: Reference, requests: RequestCounts) -> None:
        self.version, self.reference, self.requests = model.id, reference, requests
        self.graph: GraphCounts | None = None
        """None until the monitoring process has counted a changed graph."""
        names = range(model.config.in_features) if model.schema is None else model.schema.position_names
        features = [names[column] for column in reference.columns]
        predictions = Names(bins=model.class_names) if model.config.task == "multiclass" else Names(model.class_names)
        self._names = {"features": Names(features), "predictions": predictions}
        self._num_nodes = model.snapshot.states.num_nodes

    def measure(self) -> tuple[dict[str, DriftKind], float | None]:
        """The drift of every kind, and the time of the first counted request. Reads files: not for the event loop."""
        counts, since = self.requests.total()
        requests = self._compare(self.reference.split(counts), self.reference.requests)
        graph = self.reference.graph if self.graph is None else self.reference.split(self.graph.counts)
        kinds = requests | {GRAPH + kind: part for kind, part in self._compare(graph, self.reference.graph).items()}
        return kinds | {SUMS: self._sums()}, since

    def _compare(self, observed: dict[str, Counts], reference: dict[str, Counts]) -> dict[str, DriftKind]:
        kinds = {}
        for kind in REQUEST_DRIFT:
            if (reason := self.reference.reasons.get(kind)) is not None:
                kinds[kind] = DriftKind(verdict="unavailable", reason=reason)
            else:
                kinds[kind] = compare(observed[kind], reference[kind], self._names.get(kind, NO_NAMES))
        return kinds

    def _sums(self) -> DriftKind:
        change, threshold, nodes = 0.0, MIN_CHANGE, self._num_nodes
        if self.graph is not None:
            change, threshold, nodes = self.graph.sums_change, self.graph.sums_threshold, self.graph.num_nodes
        return DriftKind(
            statistic="relative_change",
            value=change,
            threshold=threshold,
            verdict="drift" if change > threshold else "ok",
            samples=nodes,
            reference=self._num_nodes,
        )


def compare(observed: Counts, reference: Counts, names: Names = NO_NAMES) -> DriftKind:
    """Compares two sets of histograms. The column with the largest PSI, relative to its threshold, decides the verdict."""
    samples = int(observed[0].sum())
    if samples == 0:
        return DriftKind(verdict="no_data", reason="no request of the last day had a new node")
    by_bin, distances = psi_by_bin(observed, reference), ks(observed, reference)
    values, thresholds = by_bin.sum(axis=1), psi_threshold(observed, reference)
    order = np.argsort(-values / thresholds, kind="stable")
    top = int(order[0])
    if names.bins:
        bins = np.argsort(-by_bin[0], kind="stable")[:MAX_WORST]
        worst = [DriftPart(name=names.bins[index], value=by_bin[0, index]) for index in bins]
    else:
        columns = order[:MAX_WORST] if names.columns else order[:0]
        worst = [DriftPart(name=names.columns[index], value=values[index], ks=distances[index]) for index in columns]
    return DriftKind(
        value=values[top],
        threshold=thresholds[top],
        verdict="drift" if values[top] > thresholds[top] else "ok",
        samples=samples,
        reference=int(reference[0].sum()),
        ks=None if names.bins else distances[top],  # classes have no order
        worst=worst,
    )
