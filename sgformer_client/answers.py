"""The JSON responses of the service, as pydantic models for the OpenAPI document and for clients.

The service does not encode predictions with these models: `service.predict.encoding` writes the same JSON from arrays.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

NodeId = int | str


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", populate_by_name=True)


class LikelyClass(_Answer):
    label: int
    class_name: str = Field(alias="class")
    probability: float


class Prediction(_Answer):
    """One node. The task of the model and the options of the request decide which fields are present."""

    node: NodeId
    label: int | None = None
    class_name: str | None = Field(default=None, alias="class")
    labels: list[int] | None = Field(default=None, description="multi-label: the labels that apply")
    classes: list[str] | None = Field(default=None, description="multi-label: their names")
    value: float | list[float] | None = Field(default=None, description="regression")
    probabilities: list[float] | dict[str, float] | None = Field(default=None, description="by label, or `by_class`")
    top_k: list[LikelyClass] | None = None
    embedding: list[float] | None = None
    exactness: Literal["exact", "frozen", "rounded"] | None = Field(
        default=None, description="rounded: exact except for the rounding of half-precision states (rounding_error)"
    )
    error: str | None = Field(default=None, description="`per_item`: why this node has no answer")
    code: str | None = Field(default=None, description="`per_item`: the code of the error")


class Origin(_Answer):
    """The version of a model that a response comes from."""

    model: str
    version: int
    snapshot: str = Field(description="content hash of the snapshot")


class LiveOrigin(Origin):
    """The version, and the last change of the graph."""

    sequence: int | None = Field(
        default=None, description="the last change of the graph that the response contains; absent if there is none"
    )


class PredictAnswer(LiveOrigin):
    """Predictions of the known nodes, then of the new nodes, both in the order of the request.

    With `on_error: per_item`, a node without an answer has `node`, `error` and `code` only.
    """

    rounding_error: float | None = Field(
        default=None, description="largest error of rounded predictions, measured when the snapshot was published"
    )
    assumed: int | None = Field(default=None, description="the number of operations in `assuming`, which are not kept")
    predictions: list[Prediction]


class Branches(_Answer):
    """The parts of the logits: per output, four numbers that add up to the logit."""

    attention_self: list[float] = Field(description="the node itself, by its value in the attention and the residual")
    attention_others: list[float] = Field(description="all other nodes, by attention")
    graph: list[float] = Field(description="the graph branch: the node and its surroundings, by propagation")
    bias: list[float]


class NeighborEffect(_Answer):
    node: NodeId
    effect: list[float] = Field(description="the logits minus the logits without this edge, exactly")
    label_without: int | None = Field(default=None, description="the class without this edge")
    labels_without: list[int] | None = Field(default=None, description="multi-label: the labels without this edge")
    value_without: float | list[float] | None = Field(default=None, description="regression: the value without this edge")


class FeatureEffect(_Answer):
    feature: int | str = Field(description="its name, or its position if the model has no names")
    effect: list[float] = Field(description="the logits minus the logits with this feature set to zero, or to missing")


class Counterfactual(_Answer):
    """A set of edges whose removal changes the decision."""

    without: list[NodeId] = Field(description="the neighbours at the other ends of these edges")
    label: int | None = None
    class_name: str | None = Field(default=None, alias="class")
    labels: list[int] | None = None
    classes: list[str] | None = None


class Fidelity(_Answer):
    """How well the reported neighbours explain the decision, as PyTorch Geometric defines it: 1 if the decision changes,
    else 0.
    """

    plus: float = Field(description="without the edges to the reported neighbours")
    minus: float = Field(description="with the edges to the reported neighbours only")


class ExplainAnswer(LiveOrigin):
    """Why a node has its answer. The task of the model decides which of label, labels and value is present."""

    node: NodeId
    label: int | None = None
    class_name: str | None = Field(default=None, alias="class")
    labels: list[int] | None = None
    classes: list[str] | None = None
    value: float | list[float] | None = None
    exactness: Literal["exact", "rounded"] | None = None
    rounding_error: float | None = None
    logits: list[float]
    branches: Branches
    degree: int = Field(description="how many neighbours the node has; the effects of all were computed")
    neighbors: list[NeighborEffect] = Field(description="the neighbours with the strongest effects: at most `top`")
    features: list[FeatureEffect] | None = Field(
        description="the features with the strongest effects: at most `top`; null if the snapshot has no raw features"
    )
    counterfactual: Counterfactual | None = Field(
        description="null if no set of up to 32 edges was found, and for regression"
    )
    fidelity: Fidelity | None = Field(description="null for regression")


class SimilarNode(_Answer):
    node: NodeId
    similarity: float = Field(description="the cosine of the two embeddings")


class SimilarTo(_Answer):
    node: NodeId
    neighbors: list[SimilarNode] = Field(description="most similar first; a known node is not in its own list")


class SimilarAnswer(LiveOrigin):
    """Similar nodes of the known nodes, then of the new nodes, both in the order of the request."""

    rounding_error: float | None = None
    results: list[SimilarTo]
    exact: bool = Field(description="true: all nodes were compared")
    recall: float | None = Field(
        description="the share of the 10 nearest that the index finds, measured at publishing; null without an index"
    )


class MapAnswer(Origin):
    """The nodes of the snapshot in two dimensions; if there are more than `limit`, evenly spaced ones."""

    rounding_error: float | None = None
    method: Literal["pca"]
    explained: list[float] = Field(description="the shares of the variance along x and y")
    nodes: int = Field(description="how many nodes the snapshot has")
    shown: int = Field(description="how many nodes the lists have")
    mean: list[float] = Field(description="the x and y of an embedding e are components (e - mean)")
    components: list[list[float]]
    task: Literal["multiclass", "multilabel", "regression"]
    classes: list[str]
    ids: list[NodeId]
    x: list[float]
    y: list[float]
    labels: list[float | None] = Field(description="the class or value in the data; null if unknown, and for multi-label")
    predictions: list[float] = Field(description="the class, the likeliest of several labels, or the value")


class SparseValues(_Answer):
    """The features that are not zero."""

    indices: list[int]
    values: list[float]


class NodeData(_Answer):
    """A node of the graph. Features, label and split are absent if the snapshot has none, and null if the node has none."""

    node: NodeId
    degree: int = Field(description="how many neighbours it has")
    features: dict[str, float | bool | str | None] | list[float] | SparseValues | None = Field(
        default=None, description="raw, as training read them: by name, all in order, or those that are not zero"
    )
    label: int | None = None
    class_name: str | None = Field(default=None, alias="class")
    labels: list[int] | None = Field(default=None, description="multi-label: the labels that apply")
    classes: list[str] | None = Field(default=None, description="multi-label: their names")
    value: float | list[float | None] | None = Field(default=None, description="regression")
    split: Literal["train", "validation", "test"] | None = Field(default=None, description="the part of the training data")
    added: str | None = Field(default=None, description="when a change added it; absent for nodes of the snapshot")


class NodeAnswer(LiveOrigin, NodeData):
    """A node of the graph, and its neighbours."""

    neighbors: list[NodeId] = Field(description="the first ones, in the order of the graph: at most `limit`")


class NodesAnswer(LiveOrigin):
    """A part of the nodes of the graph."""

    nodes: list[NodeData]
    next: int | None = Field(description="`start` of the next part; null at the end")


class GraphChanged(Origin):
    """A change of the graph that is logged and applied."""

    sequence: int = Field(description="the number of the change")
    nodes: int = Field(description="how many nodes the graph has after the change")
    edges: int
    applied: int = Field(description="operations that were applied as sent")
    skipped: int = Field(description="operations that `upsert` turned into an update, or that changed nothing")
    durability: str = Field(description="what the change survives: see docs/graph_log.md", examples=["fsync"])


class Overlay(_Answer):
    """How much of the graph differs from the snapshot."""

    nodes: int = Field(description="nodes whose edges differ")
    features: int = Field(description="nodes whose features differ")
    states: int = Field(description="recomputed states in memory")
    bytes: int


class LogState(_Answer):
    kind: Literal["file", "redis"]
    bytes: int
    durability: str


class GraphAnswer(Origin):
    """The graph as this worker serves it. Workers with equal `sequence` and `hash` have equal graphs."""

    graph: str = Field(description="the id of the graph, which versions over the same data share")
    sequence: int
    hash: str | None = Field(description="the hash of all changes up to `sequence`; null without changes")
    snapshot_sequence: int = Field(description="the last change that the snapshot contains")
    nodes: int
    edges: int
    overlay: Overlay
    lag_seconds: float = Field(description="seconds since the worker last knew that it has all changes of the log")
    log: LogState | None = None


class ClassName(_Answer):
    label: int
    class_name: str = Field(alias="class")


class ClassesAnswer(Origin):
    task: Literal["multiclass", "multilabel", "regression"]
    classes: list[ClassName] = Field(description="by label; none for regression")


class FeatureName(_Answer):
    """A feature that requests may give by name."""

    name: str
    kind: Literal["number", "boolean", "category", "date"]
    categories: list[str] | None = Field(default=None, description="the values of a category")
    fill: float | str | None = Field(default=None, description="replaces a missing value; absent: it is refused")
    flag: bool = Field(default=False, description="true: a further number is 1 if the value was missing")
    position: int = Field(description="the position of its first number in a list of all features")
    width: int = Field(description="how many numbers it takes in that list")


class FeaturesAnswer(Origin):
    width: int = Field(description="the length of a list of all features")
    transform: Literal["none", "row", "standard"] = Field(description="what the model applies to raw features")
    features: list[FeatureName] | None = Field(description="null if the model was trained without names")


class DriftPart(_Answer):
    """A feature, a label or a class, and its part in the drift."""

    name: int | str
    value: float = Field(description="its PSI; for a class, its term of the PSI")
    ks: float | None = None


class DriftKind(_Answer):
    """One comparison with the training graph (docs/drift.md)."""

    verdict: Literal["ok", "drift", "no_data", "unavailable"]
    reason: str | None = Field(default=None, description="why there is no value")
    statistic: Literal["psi", "relative_change"] = "psi"
    value: float | None = Field(default=None, description="the value of the worst feature or label")
    threshold: float | None = Field(default=None, description="the threshold for this number of samples")
    samples: int = Field(default=0, description="how many new nodes, or nodes of the live graph, were compared")
    reference: int = Field(default=0, description="with how many nodes of the training graph they were compared")
    ks: float | None = Field(default=None, description="largest difference of the cumulative distributions, 0 to 1")
    worst: list[DriftPart] = Field(default=[], description="the worst features, labels or classes")


class DriftAnswer(LiveOrigin):
    """Comparisons by kind. `sequence`: the last change of the graph that the kinds `graph_...` contain."""

    since: str | None = Field(description="the time of the first sampled request, at most a day ago; null if there is none")
    kinds: dict[str, DriftKind]


class Live(_Answer):
    status: Literal["live"] = "live"


class Ready(LiveOrigin):
    status: Literal["ready"] = "ready"


class ServedVersion(Origin):
    """The version that this worker serves."""

    engine: str = Field(examples=["numpy"])
    loading_seconds: dict[str, float] = Field(description="duration of each loading step")


class Failure(_Answer):
    """Why a worker could not load a version. `version` is null if the store could not say which version is live."""

    version: int | None
    error: str
    at: str


class RollBack(_Answer):
    left: int | None = Field(alias="from")
    to: int
    why: str | None = Field(description="why the service rolled back automatically; null if a user rolled back")
    at: str


class StoredVersion(_Answer):
    """A version in the store. A damaged version has only `version`, `live` and `damaged`, the reason."""

    version: int
    live: bool
    snapshot: str | None = None
    created: str | None = None
    nodes: int | None = None
    edges: int | None = None
    scores: dict[str, Any] | None = None
    damaged: str | None = None


class ModelsAnswer(_Answer):
    serving: ServedVersion | None
    failure: Failure | None = Field(description="the last attempt to load a version, if it failed")
    probation: int | None = Field(description="the version that is rolled back automatically if it fails too often")
    problem: str | None = Field(default=None, description="damage in the store's record of live versions")
    rolled_back: RollBack | None = Field(description="the roll-back that made the live version live")
    versions: list[StoredVersion]


class ManifestAnswer(Origin):
    """`manifest.json` of a version (docs/snapshot_format.md)."""

    format: int
    created: str
    config: dict[str, Any]
    nodes: int
    edges: int
    node_ids: str | None = Field(description="type of the node ids; null if the ids are 0 to N - 1")
    classes: list[str] | None
    dataset: dict[str, Any]
    training: dict[str, Any]
    scores: dict[str, Any]
    states: dict[str, Any]
    probe_tolerance: float
    onnx: dict[str, Any] | None
    libraries: dict[str, str]
    files: dict[str, dict[str, Any]] = Field(description="size and sha256 of each file")
    features: list[dict[str, Any]] | None = Field(default=None, description="named feature columns; null without names")
    feature_entries: int | None = Field(default=None, description="stored values of sparse raw features; null if dense")
    reading: dict[str, Any] | None = Field(default=None, description="how tables were read")
    live: dict[str, Any] | None = Field(default=None, description="id of the live graph, and its last change in the version")
    embeddings: dict[str, Any] | None = Field(default=None, description="how the map of the embeddings was made")


class ErrorAnswer(_Answer):
    error: str = Field(description="one sentence: what was wrong, what was expected")
    code: str
    details: dict[str, Any]
