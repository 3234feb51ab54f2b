"""`sgf-train check`: the facts about data, what is suspicious about it, and why training would refuse it."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, replace

from model_store import DataError, Store, StoreError
from model_store.cli.terminal import default_log
from sgformer import ConfigError, SgformerError
from training.cli.events import EventWriter
from training.cli.facts_text import facts_text, styled
from training.cli.options import LIVE, CheckOptions
from training.cli.terminal import live_settings, model_name, open_training_data, print_result, read_settings
from training.data.facts.data_facts import DataFacts
from training.data.facts.findings import findings
from training.data.user_data import read_user_graph
from training.fit.settings import configurations, feature_scaling

REFUSED = 1


def check_data(options: CheckOptions, _events: EventWriter) -> int:
    if options.path is not None:
        if other := options.data or options.dataset:
            raise ConfigError(f"check reads one graph, got {options.path} and {other}")
        options = replace(options, data=options.path)
    settings, dataset = read_settings(options)
    store = Store(options.store, redis=default_log())
    model = model_name(options, store, dataset)
    if options.data is LIVE:
        settings = live_settings(store, model) | settings
    error: Exception | None = None
    facts: DataFacts | None
    notes: tuple[str, ...] = ()
    try:
        with open_training_data(options, store, model, dataset) as data:
            notes = data.notes
            configurations(data, settings)  # raises ConfigError
            scaling = feature_scaling(data, settings)
            facts = DataFacts.of(data, scaling.transform, scaling.reason)
    except DataError as reason:
        error, facts = reason, _facts_without_labels(options)
    warnings = [] if facts is None else findings(facts)
    content = None if facts is None else facts.to_json()
    result = {
        "facts": content,
        "notes": list(notes),
        "warnings": [asdict(finding) for finding in warnings],
        "error": None if error is None else str(error),
    }
    text = "" if facts is None else facts_text(facts, warnings) + "\n\n"
    text += "training would start" if error is None else styled("error", f"training would be refused: {error}")
    print_result(options, result, text)
    return 0 if error is None else REFUSED


def _facts_without_labels(options: CheckOptions) -> DataFacts | None:
    """The facts about the graph without labels; None if the graph cannot be read."""
    if options.data is None or options.data is LIVE:
        return None
    # A missing cell is an error of the first reading; the second fills in the missing cells and counts them.
    for reading in (options.reading, replace(options.reading, impute="mean")):
        with suppress(StoreError, SgformerError):
            user = read_user_graph(options.data, reading)
            return DataFacts.of_graph(options.data.stem, user.graph, user.feature_names, user.schema, user.missing_cells)
    return None
