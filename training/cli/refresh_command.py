"""`sgf-train refresh`: the same weights over new data, which needs no labels."""

from __future__ import annotations

import argparse
from typing import Any

from model_store import NodeIds, Store
from model_store.cli.terminal_tables import published
from model_store.run_contract import DataEvent, FinishedEvent
from sgformer import Graph
from training.cli.commands import print_result
from training.data import datasets
from training.data.labelled import sha256_of
from training.data.user_data import read_user_graph
from training.release.delivery import deliver
from training.release.gate import Champion, Verdict
from training.release.publishing import refresh


def refresh_model(options: argparse.Namespace) -> int:
    store = Store(options.store)
    name = options.model or store.only_model()
    graph, ids, dataset = _read(options)
    versions = store.model(name)
    source = versions.live() if options.source is None else options.source
    options.events.write(DataEvent(**dataset, settings={}, parent=source, warm_start=None))
    version = refresh(store, name, graph, version=source, node_ids=ids, dataset=dataset, job=options.job)

    def judged(champion: Champion | None) -> Verdict:
        if champion is None or champion.version == source:
            return Verdict(True, "the weights are those of the live version", source)
        told = f"the weights are those of version {source}, version {champion.version} is live: nothing to compare them by"
        return Verdict(False, told, champion.version)

    outcome = deliver(versions, version, options.activate, judged, options.events, options.keep)
    sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges}
    result: dict[str, Any] = {"model": name, "version": version} | sizes | outcome
    text = f"{published(name, version, graph.num_nodes, outcome['live'])}; the weights are those of version {source}"
    options.events.write(FinishedEvent(result=result))
    print_result(options, result, text)
    return 0


def _read(options: argparse.Namespace) -> tuple[Graph, NodeIds | None, dict[str, Any]]:
    if options.dataset:
        data = datasets.load(options.dataset)
        graph, ids, features, name = data.graph, data.node_ids, data.feature_names, data.name
    else:
        graph, ids, features = read_user_graph(options.data)
        name = options.data.name
    return graph, ids, {"name": name, "sha256": sha256_of(graph)} | ({"features": list(features)} if features else {})
