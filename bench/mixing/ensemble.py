"""Many small models trained at once, each on rows in its own order: every parameter has a first axis of models.

Models of one ensemble share the batch size and the number of steps; the learning rate, the initial weights and the
order differ by model. Every product is a batched product, so a GPU trains hundreds of models in the time of a few.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

Parameters = dict[str, Any]  # tensors of shape (num_models, ...)
Loss = Callable[[Parameters, Any], Any]  # rows of each model, shape (num_models, batch, ...), to a loss for each model


@dataclass(frozen=True, slots=True)
class Schedule:
    """Linear warm-up over ``warm_up`` of all steps, times a cosine that ends at a twentieth of the rate."""

    num_steps: int
    warm_up: float = 0.05

    def factor(self, step: int) -> float:
        """Return the factor of the learning rate at a step; the first step is 1."""
        cosine = 0.525 + 0.475 * math.cos(math.pi * step / self.num_steps)
        return min(1.0, step / max(1.0, self.num_steps * self.warm_up)) * cosine


class AdamW:
    """AdamW with a learning rate for each model; gradients are clipped to a norm of 1 for each model."""

    def __init__(self, parameters: Parameters, rates: Any, *, decay: float = 0.1) -> None:
        self._parameters, self._rates, self._decay = parameters, rates, decay
        self._means = {name: torch.zeros_like(each) for name, each in parameters.items()}
        self._squares = {name: torch.zeros_like(each) for name, each in parameters.items()}
        self._step = 0

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, factor: float) -> None:
        """Move every parameter against its gradient, and forget the gradient."""
        self._step += 1
        norms = torch.stack([each.grad.flatten(1).norm(dim=1) for each in self._parameters.values()]).norm(dim=0)
        clip = (1.0 / norms.clamp(min=1.0)).float()
        for name, each in self._parameters.items():
            shape = (-1,) + (1,) * (each.ndim - 1)
            gradient = each.grad * clip.view(shape)
            rate = (self._rates * factor).view(shape)
            mean = self._means[name].lerp_(gradient, 0.1)
            square = self._squares[name].lerp_(gradient.square(), 0.05)
            scale = (square / (1 - 0.95**self._step)).sqrt_().add_(1e-8)
            each.mul_(1 - rate * self._decay).sub_(rate * mean / (1 - 0.9**self._step) / scale)
            each.grad = None


def train(
    loss: Loss,
    parameters: Parameters,
    rows: Any,
    orders: NDArray[np.int64],
    held_out: Any,
    *,
    batch: int,
    rates: NDArray[np.float64],
    evaluations: int = 1,
) -> NDArray[np.float64]:
    """Train every model on ``rows`` in its order and return its held-out losses; the last short batch is dropped.

    Parameters
    ----------
    loss
        From parameters and rows of each model to a loss for each model.
    parameters
        Tensors of shape (num_models, ...), which the training changes.
    rows
        All rows on the device; shape (num_rows, ...).
    orders
        Row numbers; shape (num_models, num_samples).
    held_out
        Rows to evaluate every model on.
    evaluations
        How often, evenly spread; the last one is after the last step. The result has shape (num_models, evaluations).
    """
    device = rows.device
    optimizer = AdamW(parameters, torch.as_tensor(rates, dtype=torch.float32, device=device))
    num_steps = orders.shape[1] // batch
    schedule = Schedule(num_steps)
    ids = torch.from_numpy(orders[:, : num_steps * batch].reshape(len(orders), num_steps, batch)).to(device)
    losses: list[Any] = []
    for step in range(1, num_steps + 1):
        loss(parameters, rows[ids[:, step - 1]]).sum().backward()
        optimizer.step(schedule.factor(step))
        if step * evaluations // num_steps > len(losses):
            losses.append(_held_out_loss(loss, parameters, held_out, batch))
    return np.asarray(torch.stack(losses, dim=1).cpu().numpy())


@torch.no_grad()  # type: ignore[untyped-decorator]
def _held_out_loss(loss: Loss, parameters: Parameters, held_out: Any, batch: int) -> Any:
    models = len(next(iter(parameters.values())))
    parts = [len(part) * loss(parameters, part.expand(models, *part.shape)).double() for part in held_out.split(batch)]
    return torch.stack(parts).sum(dim=0) / len(held_out)


def repeated(parameters: list[dict[str, Any]], seeds: NDArray[np.int64], device: str) -> Parameters:
    """Return the parameters of models that begin with the weights of their seed: ``parameters[seed]``."""
    return {
        name: torch.stack([parameters[int(seed)][name] for seed in seeds]).to(device).requires_grad_()
        for name in parameters[0]
    }


# ---- a GPT


@dataclass(frozen=True, slots=True)
class GPT:
    """A GPT with learned positions and tied embeddings; ``parameters`` and ``loss`` say the rest."""

    vocabulary: int
    context: int
    width: int
    layers: int
    heads: int

    def parameters(self, seed: int) -> dict[str, Any]:
        """Return the initial weights of one model."""
        draws = torch.Generator().manual_seed(seed)
        width = self.width

        def drawn(*shape: int, std: float = 0.02) -> Any:
            return torch.randn(*shape, generator=draws) * std

        weights = {"tokens": drawn(self.vocabulary, width), "positions": drawn(self.context, width)}
        for layer in range(self.layers):
            weights |= {
                f"{layer}.norm": torch.ones(width),
                f"{layer}.queries": drawn(width, 3 * width),
                f"{layer}.out": drawn(width, width),
                f"{layer}.second_norm": torch.ones(width),
                f"{layer}.up": drawn(width, 4 * width),
                f"{layer}.down": drawn(4 * width, width),
            }
        return weights | {"norm": torch.ones(width)}

    def loss(self, parameters: Parameters, rows: Any) -> Any:
        """Return the mean loss of predicting each token but the first of its row, in nats; shape (num_models,)."""
        with torch.autocast(rows.device.type, torch.bfloat16):
            models, batch, _ = rows.shape
            inputs, targets = rows[..., :-1].reshape(models, -1), rows[..., 1:].reshape(-1)
            first = self.vocabulary * torch.arange(models, device=rows.device)[:, None]
            hidden = functional.embedding(inputs + first, parameters["tokens"].flatten(0, 1))
            hidden = hidden + parameters["positions"].repeat(1, batch, 1)
            for layer in range(self.layers):
                hidden = self._layer(parameters, layer, hidden, batch)
            scores = torch.bmm(_normed(hidden, parameters["norm"]), parameters["tokens"].transpose(1, 2))
            losses = functional.cross_entropy(scores.flatten(0, 1), targets, reduction="none")
        return losses.float().view(models, -1).mean(dim=1)

    def _layer(self, parameters: Parameters, layer: int, hidden: Any, batch: int) -> Any:
        models, _, width = hidden.shape
        normed = _normed(hidden, parameters[f"{layer}.norm"])
        split = torch.bmm(normed, parameters[f"{layer}.queries"])
        split = split.view(models * batch, self.context, 3, self.heads, width // self.heads)
        queries, keys, values = split.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(models, -1, width)
        hidden = hidden + torch.bmm(mixed, parameters[f"{layer}.out"])
        up = torch.bmm(_normed(hidden, parameters[f"{layer}.second_norm"]), parameters[f"{layer}.up"])
        return hidden + torch.bmm(functional.gelu(up), parameters[f"{layer}.down"])


def _normed(hidden: Any, weight: Any) -> Any:
    return functional.layer_norm(hidden, hidden.shape[-1:]) * weight[:, None]


# ---- a classifier of small pictures


@dataclass(frozen=True, slots=True)
class Classifier:
    """Two layers on pixels; rows hold the pixels and, last, the class."""

    pixels: int
    classes: int
    width: int

    def parameters(self, seed: int) -> dict[str, Any]:
        """Return the initial weights of one model."""
        draws = torch.Generator().manual_seed(seed)
        sizes = (self.pixels, self.width, self.width, self.classes)
        return {
            str(layer): torch.randn(inputs, outputs, generator=draws) / math.sqrt(inputs)
            for layer, (inputs, outputs) in enumerate(itertools.pairwise(sizes))
        }

    def loss(self, parameters: Parameters, rows: Any) -> Any:
        """Return the mean loss in nats; shape (num_models,)."""
        hidden, classes = rows[..., :-1], rows[..., -1].long()
        hidden = functional.relu(torch.bmm(hidden, parameters["0"]))
        hidden = functional.relu(torch.bmm(hidden, parameters["1"]))
        scores = torch.bmm(hidden, parameters["2"])
        losses = functional.cross_entropy(scores.flatten(0, 1), classes.flatten(), reduction="none")
        return losses.view(classes.shape).mean(dim=1)
