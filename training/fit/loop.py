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
from torch.nn.parallel import DistributedDataParallel

from sgformer import ConfigError, FullForward, ModelConfig, SGFormer, SgformerError
from sgformer.arrays.torch_operations import shared
from sgformer.full_graph.collectives import gather_rows, world_size
from sgformer.full_graph.prefetch import prefetched
from sgformer.full_graph.shard import Shard
from sgformer.torch_model.model import GraphTensors
from training.data.labelled import PARTS, TRAIN, VALIDATION, LabelledGraph
from training.fit import tasks
from training.fit.batches import Subgraphs, partition_of
from training.fit.checkpoint import Checkpoint
from training.fit.input_dropout import drop_inputs
from training.fit.processes import any_process, broadcast_buffers, rank, require_same, seed_epoch, share_of
from training.fit.scratch import allocator_for, opener_for
from training.fit.settings import TrainingConfig
from training.fit.warm_start import digest_of

GRAPH_PARTS = ("graph_input", "graph_layers", "output")
"""Prefixes of the parameters with the weight decay of the graph branch, as in the authors' code."""


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
    """Of every node, with the weights of the best epoch. In a file for a graph that is mapped from files."""


class TrainingError(SgformerError):
    """Training cannot continue."""


class Stopped(KeyboardInterrupt):
    """Training was stopped by request, usually by a signal. The checkpoint, if there is one, holds its state."""


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
    device: str = "cpu",
) -> TrainedModel:
    """Trains a model. The same seed gives the same weights on one CPU, also if the run is killed and resumed.

    If torch.distributed has several processes, all of them call this. Each step then has a batch per process, and the mean
    of their gradients. A run may be resumed with another number of processes.

    Args:
        checkpoint: file for the state of the run, written every `checkpoint_seconds`, at the end, and on `stop`. The caller
            removes it.
        resume: continue from `checkpoint` if it exists.
        stop: checked after every epoch; if it returns True, `Stopped` is raised.
        start: tensors to start with (`warm_start.StartingPoint.tensors`); the others start at random.
        device: as `choose_device` returns it. A run may be resumed on another device.
    """
    run = _Run(config, data, training, start or {}, device)
    if resume and checkpoint is not None and any_process(checkpoint.exists()):
        run.restore(Checkpoint.read(checkpoint, run.identity))
        for epoch in run.history:
            on_epoch(epoch)
    saved = time.monotonic()
    while not run.finished:
        on_epoch(run.epoch())
        stopping = any_process(stop())
        if checkpoint is not None and rank() == 0 and (stopping or time.monotonic() - saved >= checkpoint_seconds):
            run.checkpoint().write(checkpoint)
            saved = time.monotonic()
        if stopping:
            raise Stopped
    if checkpoint is not None and rank() == 0:
        run.checkpoint().write(checkpoint)
    return run.result()


class _Run:
    def __init__(
        self,
        config: ModelConfig,
        data: LabelledGraph,
        training: TrainingConfig,
        start: Mapping[str, NDArray[Any]],
        device: str,
    ) -> None:
        torch.manual_seed(training.seed)
        self.model = SGFormer(config).to(device)  # made on the CPU: the same weights on every device
        self.model.fit_features(data.graph)
        if start:
            self.model.load_weights(self.model.weights() | dict(start))
        self.history: list[Epoch] = []
        self.identity: dict[str, Any] = {"config": config.to_dict(), "training": asdict(training), "data": data.sha256()}
        self.identity["start"] = digest_of(start) if start else None
        self._data, self._training, self._device = data, training, device
        require_same(data.sha256(), "data")
        if world_size() > 1 and training.batch_nodes is None:
            raise ConfigError("several processes train in batches: give their size with --batch-nodes")
        self._parallel = DistributedDataParallel(self.model) if world_size() > 1 else self.model
        self._optimizer = _optimizer(self.model, training)
        self._labels = shared(data.labels)
        self._full_graph = self.model.prepare(data.graph) if training.batch_nodes is None else None
        self._best = Epoch(0, float("inf"), tasks.worst(data.metric))
        self._best_weights = self.model.weights()

    @property
    def finished(self) -> bool:
        done, patience = len(self.history), self._training.patience
        return done >= self._training.epochs or (patience is not None and done - self._best.number >= patience)

    def epoch(self) -> Epoch:
        self.model.train()
        for group in self._optimizer.param_groups:
            group["lr"] = self._training.learning_rate_at(len(self.history))
        if world_size() > 1 or self._device != "cpu":  # a checkpoint has the random numbers of one CPU only
            seed_epoch(self._training.seed, len(self.history))
        losses = gather_rows(np.array([self._step(*batch) for batch in self._batches()]))
        if world_size() > 1:
            broadcast_buffers(self.model)
        epoch = Epoch(len(self.history) + 1, float(np.mean(losses)) if len(losses) else 0.0, self._validation())
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
        adam = {f"adam.{number}.{name}": tensor for number, parts in state.items() for name, tensor in parts.items()}
        tensors |= {name: tensor.cpu() for name, tensor in adam.items()}
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
        graph = drop_inputs(graph, self._training.feature_dropout, self._training.edge_dropout)
        loss = tasks.loss(self._parallel(graph, nodes), labels, self._data.task, self._training.label_smoothing)
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        self._optimizer.step()
        return loss.item()

    def _batches(self) -> Iterator[tuple[GraphTensors, torch.Tensor, torch.Tensor]]:
        """Yields a graph, its training nodes, and their labels."""
        data = self._data
        if self._full_graph is not None:
            nodes = torch.from_numpy(data.nodes(TRAIN))
            yield self._full_graph, nodes.to(self._device), self._labels[nodes].to(self._device)
            return
        parts = partition_of(len(self.history), data.graph.num_nodes, self._training.batch_nodes or 2, self._training.seed)
        trained = (members for members in parts if (data.split[members] == TRAIN).any())
        yield from prefetched(self._batch, share_of(list(trained)) if world_size() > 1 else trained)

    def _batch(self, members: NDArray[np.int64]) -> tuple[GraphTensors, torch.Tensor, torch.Tensor]:
        inside = np.flatnonzero(self._data.split[members] == TRAIN)
        graph = self.model.prepare(self._subgraphs.induced(members))
        return graph, torch.from_numpy(inside).to(self._device), self._labels[members[inside]].to(self._device)

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
            logits, shard = self._stream.logits(self.model.weights()), self._shard
            if nodes is None:
                return gather_rows(logits, allocator_for(self._data.graph))
            return gather_rows(logits[nodes[(nodes >= shard.start) & (nodes < shard.stop)] - shard.start])
        self.model.eval()
        with torch.inference_mode():
            places = None if nodes is None else torch.from_numpy(nodes).to(self._device)
            return np.asarray(self.model(self._full_graph, places).cpu().numpy())

    @cached_property
    def _stream(self) -> FullForward:
        graph = self._data.graph
        return FullForward(self.model.config, graph, device=self._device, allocate=allocator_for(graph), shard=self._shard)

    @cached_property
    def _shard(self) -> Shard:
        return Shard.of(self._data.graph, opener_for(self._data.graph))

    @cached_property
    def _subgraphs(self) -> Subgraphs:
        return Subgraphs(self._data.graph)


def _optimizer(model: SGFormer, training: TrainingConfig) -> torch.optim.Adam:
    named = list(model.named_parameters())
    graph = [parameter for name, parameter in named if name.startswith(GRAPH_PARTS)]
    others = [parameter for name, parameter in named if not name.startswith(GRAPH_PARTS)]
    groups: list[dict[str, Any]] = [
        {"params": others, "weight_decay": training.weight_decay},
        {"params": graph, "weight_decay": training.gnn_weight_decay},
    ]
    return torch.optim.Adam(groups, lr=training.learning_rate)
