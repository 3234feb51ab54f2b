"""`sgf-train refresh`: publish the weights of a version over new data, which needs no labels."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from model_store import Manifest, Snapshot, Store
from model_store.cli.terminal import default_log, describe_publication
from model_store.publish.shared_forward import assist
from model_store.run_contract import DataEvent, FinishedEvent
from sgformer import ConfigError, Graph
from sgformer.full_graph.collectives import broadcast
from training.cli.events import EventWriter
from training.cli.options import LIVE, RefreshOptions
from training.cli.terminal import chosen_reading, open_live_data, print_notes, print_result
from training.data import datasets
from training.data.labelled import describe_data, sha256_of
from training.data.live import label_live_graph
from training.data.tables.reading import Reading
from training.data.user_data import UserGraph, read_user_graph
from training.fit.processes import process_group, rank, require_same, require_shared
from training.release.delivery import deliver
from training.release.gate import Verdict
from training.release.publishing import refresh


def refresh_model(options: RefreshOptions, events: EventWriter) -> int:
    with process_group(options.device) as device:
        return _refresh_model(replace(options, device=device), events)


def _refresh_model(options: RefreshOptions, events: EventWriter) -> int:
    store = Store(options.store, redis=default_log())
    require_shared(options.store)
    name = options.model or store.only_model()
    versions = store.model(name)
    source = broadcast(versions.live() if options.source is None else options.source)
    with _open_graph(options, store, name, None if source is None else versions.manifest(source)) as (graph, details):
        if options.activate != "never" and not options.discard_changes:
            versions.require_same_graph(details["live"]["graph"] if "live" in details else details["dataset"]["sha256"])
        require_same(details["dataset"]["sha256"], "data")
        if rank() > 0:
            with versions.open(source, verify="sizes") as snapshot:  # rank 0 checks every byte
                config, weights = snapshot.manifest.config, dict(snapshot.weights)
            assist(config, weights, graph, options.device)
            return 0
        events.write(DataEvent(**details["dataset"], settings={}, parent=source, warm_start=None))
        details |= {"job": options.job, "mode": options.activate, "raw_data": not options.no_raw_data}
        version = refresh(store, name, graph, version=source, device=options.device, **details)

    def judge(live: Snapshot | None) -> Verdict:
        live_version = None if live is None else int(live.folder.name)
        if live_version in (None, source):
            return Verdict(True, "the weights are those of the live version", source)
        reason = (
            f"the weights are those of version {source}, but version {live_version} is live, and a refresh does not compare "
            f"weights; to use it anyway, run sgf-models activate {version}"
        )
        return Verdict(False, reason, live_version)

    delivered = deliver(versions, version, options.activate, judge, events, options.keep, options.discard_changes)
    sizes = {"nodes": graph.num_nodes, "edges": graph.num_edges}
    result = {"model": name, "version": version} | sizes | delivered
    publication = describe_publication(name, version, graph.num_nodes, delivered["live"])
    text = f"{publication}; the weights are those of version {source}"
    events.write(FinishedEvent(result=result))
    print_result(options, result, text)
    return 0


@contextmanager
def _open_graph(
    options: RefreshOptions, store: Store, model: str, source: Manifest | None
) -> Iterator[tuple[Graph, dict[str, Any]]]:
    """Yields the new graph, and the arguments of `refresh` that describe it."""
    if options.data is not LIVE:
        user = _read_graph(options, source)
        file = str(options.data.name if options.data else options.dataset)
        details: dict[str, Any] = {"node_ids": user.node_ids}
        details["dataset"] = describe_data(file, sha256_of(user.graph), user.feature_names)
        yield user.graph, details | ({} if user.reading is None else {"features": user.schema, "reading": user.reading})
        return
    if options.reading != Reading():
        raise ConfigError(f"{options.reading}: for your own tables, not for --data live")
    with open_live_data(store, model) as data:
        details = {"node_ids": data.node_ids, "live": data.position}
        if data.labels is None:
            about = data.manifest.dataset
            details["dataset"] = describe_data(str(about.get("name", model)), sha256_of(data.graph), about.get("features"))
        else:
            labelled = label_live_graph(data, "")
            details |= {"labels": labelled.labels, "split": labelled.split, "dataset": labelled.description()}
        yield data.graph, details


def _read_graph(options: RefreshOptions, source: Manifest | None) -> UserGraph:
    if options.data is None:
        data = datasets.load(str(options.dataset))
        return UserGraph(data.graph, data.node_ids, names=data.feature_names)
    reading, _ = chosen_reading(options, source)
    user = read_user_graph(options.data, reading, source.features if source else None)
    print_notes(user.notes)
    return user
