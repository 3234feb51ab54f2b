"""What is suspicious about data, and what to do about it. No finding stops a training; docs/check.md explains each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from training.data.facts.columns import Suspicion
from training.data.facts.data_facts import DataFacts, FeatureFacts, LabelFacts
from training.data.facts.structure import StructureFacts

MANY_ISOLATED = 0.2
LOW_HOMOPHILY = 0.1
MIN_EDGES = 50
"""Between labelled nodes: the homophily of fewer edges is chance."""
UNEVEN_SCALES = 100.0
LARGE_VALUES = 1000.0
MIN_TEST_NODES = 20
"""As in `release.gate`, which compares versions on the test nodes."""
FEW_TRAINING_NODES = 5
MANY_CLASSES = 0.1
MAX_NAMES = 6


@dataclass(frozen=True)
class Finding:
    code: str
    text: str
    advice: str


def findings(facts: DataFacts) -> list[Finding]:
    results = [*_of_edges(facts.structure), *_of_features(facts.features)]
    if facts.scaling == "none":
        results += _of_scales(facts.features)
    if facts.labels is not None:
        results += [*_of_classes(facts.labels), *_of_split(facts.labels), *_of_homophily(facts.labels)]
    return results


def _of_edges(structure: StructureFacts) -> Iterator[Finding]:
    counts, edges, isolated = structure.given, structure.edges, structure.isolated
    if counts is not None and 0 < counts.one_way < edges:
        yield Finding(
            "directed_edges",
            f"{counts.one_way:,} of {edges:,} edges are given in one direction only; all edges are read as undirected",
            "if the direction matters, add features that hold it, such as the numbers of incoming and outgoing edges",
        )
    if counts is not None and counts.repeated:
        text = f"{counts.repeated:,} entries of the edge list repeat another; each edge counts once"
        yield Finding(
            "repeated_edges", text, "if repeats mean strength, make it a feature of the nodes: edges have no weights"
        )
    if isolated > MANY_ISOLATED * structure.nodes:
        text = f"{isolated:,} of {structure.nodes:,} nodes ({isolated / structure.nodes:.0%}) have no edges"
        advice = (
            "check that the ids in the edge list are those of the nodes; without edges, only features and attention count"
        )
        yield Finding("isolated_nodes", text, advice)


SUSPICIONS: dict[Suspicion, tuple[str, str, str]] = {
    "index": (
        "index_column",
        "the rows of the table are numbered in",
        "remove the column: it is not a property of the nodes",
    ),
    "id": ("id_column", "ids are in", "remove the column: the size of an id means nothing, and a new node has another one"),
    "label": ("label_column", "the label is determined by", "remove the column, unless it is known for new nodes, too"),
}


def _of_features(features: FeatureFacts) -> Iterator[Finding]:
    for suspicion, (code, text, advice) in SUSPICIONS.items():
        if names := [column.name for column in features.columns if column.suspicion == suspicion]:
            yield Finding(code, f"{text} {_named('feature', names)}", advice)
    if names := [column.name for column in features.columns if column.kind == "constant"]:
        advice = "remove it, or check how it was read" if len(names) == 1 else "remove them, or check how they were read"
        yield Finding("constant_columns", f"one value for all nodes in {_named('feature', names)}", advice)


def _of_scales(features: FeatureFacts) -> Iterator[Finding]:
    columns = [column for column in features.columns if column.kind not in ("constant", "category")]
    columns.sort(key=lambda column: column.scale)
    if not columns:
        return
    largest, smallest = columns[-1], columns[0]
    if largest.scale > max(1.0, UNEVEN_SCALES * smallest.scale) or largest.scale > LARGE_VALUES:
        text = f"feature {largest.name} ranges from {largest.low:g} to {largest.high:g}"
        text += f", feature {smallest.name} from {smallest.low:g} to {smallest.high:g}" if largest != smallest else ""
        advice = "scale them with --feature-transform standard, or the largest dominate"
        yield Finding("uneven_scales", text, advice)


def _of_classes(labels: LabelFacts) -> Iterator[Finding]:
    classes = labels.classes
    if empty := [facts.name for facts in classes if facts.nodes and not facts.parts["train"]]:
        text = f"no training node has {_named('class', empty)}: the model cannot learn it"
        yield Finding("untrained_class", text, "label more nodes, or set the split so that every class has training nodes")
    few = [facts.name for facts in classes if 0 < facts.parts["train"] < FEW_TRAINING_NODES]
    if few and labels.task == "multiclass":
        text = f"fewer than {FEW_TRAINING_NODES} training nodes have {_named('class', few)}"
        yield Finding(
            "small_class", text, "label more nodes, or merge classes; watch macro_f1, which counts all classes alike"
        )
    if unused := [facts.name for facts in classes if not facts.nodes]:
        yield Finding("unused_class", f"no node has {_named('class', unused)}", "check the class names and the numbers in y")
    if labels.task == "multiclass" and len(classes) > max(10, MANY_CLASSES * labels.labelled):
        text = f"{labels.labelled:,} labelled nodes have {len(classes):,} classes"
        yield Finding("many_classes", text, "if the labels are quantities, use --task regression")


def _of_split(labels: LabelFacts) -> Iterator[Finding]:
    if labels.parts["test"] < MIN_TEST_NODES:
        text = f"{labels.parts['test']} test nodes"
        advice = f"--activate if_better compares versions on at least {MIN_TEST_NODES}: label more nodes, or change --split"
        yield Finding("few_test_nodes", text, advice)


def _of_homophily(labels: LabelFacts) -> Iterator[Finding]:
    homophily = labels.homophily
    if homophily is not None and homophily.edges >= MIN_EDGES and homophily.adjusted < LOW_HOMOPHILY:
        text = f"neighbours share a class hardly more often than by chance (adjusted homophily {homophily.adjusted:.2f})"
        yield Finding("low_homophily", text, "try a smaller --alpha, which weights the graph less, or sgf-train tune")


def _named(noun: str, names: list[str]) -> str:
    """E.g. "features a, b, c and 40 more"."""
    rest = len(names) - MAX_NAMES
    listed = ", ".join(name or repr(name) for name in names[:MAX_NAMES])
    plural = {"class": "classes"}.get(noun, f"{noun}s") if len(names) > 1 else noun
    return f"{plural} {listed}" + (f" and {rest:,} more" if rest > 0 else "")
