"""The training loop: full graph or random mini-batches, scored on the full graph. The best epoch by validation wins."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sgformer import ConfigError, FullForward, ModelConfig, SGFormer, SgformerError
from sgformer.torch_model.model import GraphTensors
from training.data.labelled import PARTS, TRAIN, VALIDATION, LabelledGraph
from training.fit import tasks
from training.fit.batches import induced_subgraph, random_partition
from training.fit.checkpoint import Checkpoint
from training.fit.warm_start import digest_of

GRAPH_PARTS = ("graph_input", "graph_layers", "output")
"""Prefixes of the parameters with the weight decay of the graph branch, as in the authors' code."""


@dataclass(frozen=True)
class TrainingConfig:
    epochs: int = 200
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    """For the attention branch and the input layer."""
    gnn_weight_decay: float = 5e-4
    batch_nodes: int | None = None
    """Nodes per mini-batch; None trains on the full graph."""
    patience: int | None = None
    """Training stops after this many epochs without a better validation score; None: it does not stop early."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("seed", 0), ("batch_nodes", 2), ("patience", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, got {value}")
        for name in ("learning_rate", "weight_decay", "gnn_weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Epoch:
    number: int
    loss: float
    validation: float
    """The validation score, by the data set's metric."""


@dataclass(frozen=True)
class TrainedModel:
    model: SGFormer
    """In evaluation mode, with the weights of the best epoch."""
    best: Epoch
    history: tuple[Epoch, ...]
    scores: dict[str, dict[str, float]]
    """Scores of the best epoch on the full graph, by part of the split, then by metric."""
    logits: NDArray[Any]
    """Of every node, with the weights of the best epoch."""


class TrainingError(SgformerError):
    """Training cannot continue."""


class Stopped(Exception):  # noqa: N818  # not an error
    """Training was stopped by request. The checkpoint, if there is one, holds its state."""


def train(
    config: ModelConfig,
    data: LabelledGraph,
    training: TrainingConfig,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
    *,
    checkpoint: Path | None = None,
    checkpoint_seconds: float = 30.0,
    resume: bool = False,
    stop: Callable[[], bool] = lambda: False,
    start: Mapping[str, NDArray[Any]] | None = None,
) -> TrainedModel:
    """Trains a model. The same seed gives the same weights on one machine, also if the run is killed and resumed.

    Args:
        checkpoint: file for the state of the run, written every `checkpoint_seconds`, at the end, and on `stop`. The caller
            removes it.
        resume: continue from `checkpoint` if it exists.
        stop: checked after every epoch; if it returns True, `Stopped` is raised.
        start: tensors to start with (`warm_start.Lineage`); the others start at random.
    """
    run = _Run(config, data, training, start or {})
    if resume and checkpoint is not None and checkpoint.exists():
        run.restore(Checkpoint.read(checkpoint, run.identity))
        for epoch in run.history:
            on_epoch(epoch)
    saved = time.monotonic()
    while not run.finished:
        on_epoch(run.epoch())
        stopping = stop()
        if checkpoint is not None and (stopping or time.monotonic() - saved >= checkpoint_seconds):
            run.checkpoint().write(checkpoint)
            saved = time.monotonic()
        if stopping:
            raise Stopped
    if checkpoint is not None:
        run.checkpoint().write(checkpoint)
    return run.result()


class _Run:
    def __init__(
        self, config: ModelConfig, data: LabelledGraph, training: TrainingConfig, start: Mapping[str, NDArray[Any]]
    ) -> None:
        torch.manual_seed(training.seed)
        self.model = SGFormer(config)
        self.model.fit_features(data.graph)
        if start:
            self.model.load_weights(self.model.weights() | dict(start))
        self.history: list[Epoch] = []
        self.identity: dict[str, Any] = {"config": config.to_dict(), "training": asdict(training), "data": data.sha256()}
        self.identity["start"] = digest_of(start) if start else None
        self._data, self._training = data, training
        self._optimizer = _optimizer(self.model, training)
        self._labels = torch.from_numpy(data.labels)
        self._full_graph = self.model.prepare(data.graph) if training.batch_nodes is None else None
        self._best = Epoch(0, float("inf"), tasks.worst(data.metric))
        self._best_weights = self.model.weights()

    @property
    def finished(self) -> bool:
        done, patience = len(self.history), self._training.patience
        return done >= self._training.epochs or (patience is not None and done - self._best.number >= patience)

    def epoch(self) -> Epoch:
        self.model.train()
        losses = [self._step(graph, nodes, labels) for graph, nodes, labels in self._batches()]
        epoch = Epoch(len(self.history) + 1, float(np.mean(losses)) if losses else 0.0, self._validation())
        if not np.isfinite([epoch.loss, epoch.validation]).all():
            raise TrainingError(
                f"epoch {epoch.number}: loss {epoch.loss}, validation {self._data.metric} {epoch.validation}; "
                "training has diverged (a smaller learning rate?), or this score is not defined on the validation nodes"
            )
        self.history.append(epoch)
        if tasks.better(self._data.metric, epoch.validation, self._best.validation):
            self._best, self._best_weights = epoch, self.model.weights()
        return epoch

    def result(self) -> TrainedModel:
        data = self._data
        self.model.load_weights(self._best_weights)
        logits = self._logits()
        names = dict.fromkeys((data.metric, *tasks.TASK_METRICS[data.task]))
        scores = {
            part: {name: tasks.score(name, logits[nodes], data.labels[nodes], data.task) for name in names}
            for part, number in PARTS.items()
            if len(nodes := data.nodes(number))
        }
        return TrainedModel(self.model.eval(), self._best, tuple(self.history), scores, logits)

    def checkpoint(self) -> Checkpoint:
        state = self._optimizer.state_dict()["state"]
        tensors = {f"model.{name}": torch.from_numpy(array) for name, array in self.model.weights().items()}
        tensors |= {f"best.{name}": torch.from_numpy(array) for name, array in self._best_weights.items()}
        tensors |= {f"adam.{number}.{name}": tensor for number, parts in state.items() for name, tensor in parts.items()}
        tensors["random"] = torch.get_rng_state()
        about = {"identity": self.identity, "history": [asdict(epoch) for epoch in self.history], "best": asdict(self._best)}
        return Checkpoint(tensors, about)

    def restore(self, checkpoint: Checkpoint) -> None:
        parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "best": {}, "adam": {}, "random": {}}
        for name, tensor in checkpoint.tensors.items():
            kind, _, rest = name.partition(".")
            parts[kind][rest] = tensor
        self.model.load_weights({name: tensor.numpy() for name, tensor in parts["model"].items()})
        self._best_weights = {name: tensor.numpy() for name, tensor in parts["best"].items()}
        state: dict[int, dict[str, torch.Tensor]] = {}
        for name, tensor in parts["adam"].items():
            number, _, field = name.partition(".")
            state.setdefault(int(number), {})[field] = tensor
        self._optimizer.load_state_dict(self._optimizer.state_dict() | {"state": state})
        self.history = [Epoch(**epoch) for epoch in checkpoint.about["history"]]
        self._best = Epoch(**checkpoint.about["best"])
        torch.set_rng_state(checkpoint.tensors["random"])

    def _step(self, graph: GraphTensors, nodes: torch.Tensor, labels: torch.Tensor) -> float:
        self._optimizer.zero_grad()
        loss = tasks.loss(self.model(graph, nodes), labels, self._data.task)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        self._optimizer.step()
        return loss.item()

    def _batches(self) -> Iterator[tuple[GraphTensors, torch.Tensor, torch.Tensor]]:
        """Yields a graph, its training nodes, and their labels."""
        data = self._data
        if self._full_graph is not None:
            nodes = torch.from_numpy(data.nodes(TRAIN))
            yield self._full_graph, nodes, self._labels[nodes]
            return
        # A new generator for every epoch, so that a resumed run has the same batches.
        rng = np.random.default_rng((self._training.seed, len(self.history)))
        for members in random_partition(data.graph.num_nodes, self._training.batch_nodes or 2, rng):
            inside = np.flatnonzero(data.split[members] == TRAIN)
            if len(inside):
                part = induced_subgraph(data.graph, members)
                yield self.model.prepare(part), torch.from_numpy(inside), self._labels[members[inside]]

    def _validation(self) -> float:
        data = self._data
        nodes = data.nodes(VALIDATION)
        if not len(nodes):
            raise ConfigError("the split has no validation nodes, which are needed to choose the best epoch")
        logits = self._logits(nodes)
        return tasks.score(data.metric, logits, data.labels[nodes], data.task) if np.isfinite(logits).all() else float("nan")

    def _logits(self, nodes: NDArray[np.int64] | None = None) -> NDArray[Any]:
        """The logits of these nodes, or of all, with the present weights in evaluation mode.

        A run on the full graph holds the graph as tensors. A run in batches streams it, because memory may not suffice.
        """
        if self._full_graph is None:
            logits = self._stream.logits(self.model.weights())
            return logits if nodes is None else logits[nodes]
        self.model.eval()
        with torch.inference_mode():
            return np.asarray(self.model(self._full_graph, None if nodes is None else torch.from_numpy(nodes)).numpy())

    @cached_property
    def _stream(self) -> FullForward:
        return FullForward(self.model.config, self._data.graph)


def _optimizer(model: SGFormer, training: TrainingConfig) -> torch.optim.Adam:
    named = list(model.named_parameters())
    graph = [parameter for name, parameter in named if name.startswith(GRAPH_PARTS)]
    others = [parameter for name, parameter in named if not name.startswith(GRAPH_PARTS)]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": training.weight_decay},
        {"params": graph, "weight_decay": training.gnn_weight_decay},
    ]
    return torch.optim.Adam(groups, lr=training.learning_rate)
