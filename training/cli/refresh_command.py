"""`sgf-train refresh`: publish the weights of a version over new data, which needs no labels."""

from __future__ import annotations

from typing import Any

from model_store import NodeIds, Snapshot, Store
from model_store.cli.terminal import describe_publication
from model_store.run_contract import DataEvent, FinishedEvent
from sgformer import Graph
from training.cli.events import EventWriter
from training.cli.options import RefreshOptions
from training.cli.terminal import print_result
from training.data import datasets
from training.data.labelled import describe_data, sha256_of
from training.data.user_data import read_user_graph
from training.release.delivery import deliver
from training.release.gate import Verdict
from training.release.publishing import refresh


def refresh_model(options: RefreshOptions, events: EventWriter) -> int:
    store = Store(options.store)
    name = options.model or store.only_model()
    graph, ids, features, data_name = _read_graph(options)
    dataset = describe_data(data_name, sha256_of(graph), features)
    versions = store.model(name)
    source = versions.live() if options.source is None else options.source
    events.write(DataEvent(**dataset, settings={}, parent=source, warm_start=None))
    details: dict[str, Any] = {"node_ids": ids, "dataset": dataset, "job": options.job, "mode": options.activate}
    version = refresh(store, name, graph, version=source, **details)

    def judge(live: Snapshot | None) -> Verdict:
        live_version = None if live is None else int(live.folder.name)
        if live_version in (None, source):
            return Verdict(True, "the weights are those of the live version", source)
        reason = f"the weights are those of version {source}, version {live_version} is live: they cannot be compared"
        return Verdict(False, reason, live_version)

    delivered = deliver(versions, version, options.activate, judge, events, options.keep)
    sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges}
    result = {"model": name, "version": version} | sizes | delivered
    publication = describe_publication(name, version, graph.num_nodes, delivered["live"])
    text = f"{publication}; the weights are those of version {source}"
    events.write(FinishedEvent(result=result))
    print_result(options, result, text)
    return 0


def _read_graph(options: RefreshOptions) -> tuple[Graph, NodeIds | None, tuple[str, ...] | None, str]:
    if options.data is not None:
        return *read_user_graph(options.data), options.data.name
    data = datasets.load(str(options.dataset))
    return data.graph, data.node_ids, data.feature_names, data.name
