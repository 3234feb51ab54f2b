"""Full-graph training: the best epoch by validation accuracy is the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from sgformer import ConfigError, ModelConfig, SGFormer
from sgformer.model import GraphTensors
from training.labelled import TEST, TRAIN, VALIDATION, LabelledGraph


@dataclass(frozen=True)
class TrainingConfig:
    epochs: int = 200
    learning_rate: float = 0.01
    weight_decay: float = 5e-4
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name} must be at least {least}, got {getattr(self, name)}")
        for name in ("learning_rate", "weight_decay"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ConfigError(f"{name} must be a finite number of at least 0, got {getattr(self, name)}")


@dataclass(frozen=True)
class Epoch:
    number: int
    loss: float
    validation_accuracy: float


@dataclass(frozen=True)
class TrainedModel:
    model: SGFormer
    """In evaluation mode, with the weights of the best epoch."""
    best: Epoch
    test_accuracy: float


def train(
    config: ModelConfig,
    data: LabelledGraph,
    training: TrainingConfig,
    on_epoch: Callable[[Epoch], None] = lambda _: None,
) -> TrainedModel:
    """Trains a classifier. The same seed gives the same weights on one machine."""
    torch.manual_seed(training.seed)
    model = SGFormer(config)
    model.fit_features(data.graph)
    inputs, labels = model.prepare(data.graph), torch.from_numpy(data.labels)
    train_nodes, validation_nodes = (torch.from_numpy(data.nodes(part)) for part in (TRAIN, VALIDATION))
    optimizer = torch.optim.Adam(model.parameters(), lr=training.learning_rate, weight_decay=training.weight_decay)
    best, best_weights = Epoch(0, float("inf"), -1.0), model.weights()
    for number in range(1, training.epochs + 1):
        model.train()
        optimizer.zero_grad()
        loss = F.cross_entropy(model(inputs)[train_nodes], labels[train_nodes])
        loss.backward()  # type: ignore[no-untyped-call]  # torch's stub
        optimizer.step()
        epoch = Epoch(number, loss.item(), accuracy(model, inputs, labels, validation_nodes))
        on_epoch(epoch)
        if epoch.validation_accuracy > best.validation_accuracy:
            best, best_weights = epoch, model.weights()
    model.load_weights(best_weights)
    return TrainedModel(model.eval(), best, accuracy(model, inputs, labels, torch.from_numpy(data.nodes(TEST))))


def accuracy(model: SGFormer, inputs: GraphTensors, labels: torch.Tensor, nodes: torch.Tensor) -> float:
    model.eval()
    with torch.inference_mode():
        return float((model(inputs)[nodes].argmax(dim=1) == labels[nodes]).float().mean())
