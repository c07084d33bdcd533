"""Small networks of PyTorch, as people train them on tables, sequences and pairs of ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn


def save_program(
    model: nn.Module, example: Sequence[Tensor], path: Path, batch_axes: Sequence[int] | None = None
) -> Path:
    """Write an exported program that takes any number of rows; return ``path``.

    ``batch_axes``: where the rows are in each input; the first dimension unless given.
    """
    axes = batch_axes or [0] * len(example)
    rows = torch.export.Dim("rows")
    shapes = tuple({axis: rows} for axis in axes)
    # One tensor for two arguments would make them one argument.
    given = tuple(each.clone() for each in example)
    program = torch.export.export(model.eval(), given, dynamic_shapes=shapes)
    torch.export.save(program, path)
    return path


def mlp(features: int, outputs: int) -> nn.Sequential:
    """Return a plain network of two hidden layers."""
    return nn.Sequential(
        nn.Linear(features, 64), nn.BatchNorm1d(64), nn.ReLU(),
        nn.Linear(64, 32), nn.GELU(), nn.Linear(32, outputs),
    )  # fmt: skip


def sparsemax(scores: Tensor) -> Tensor:
    """Return the nearest point of the simplex, along the last axis; many entries are zero.

    After Martins and Astudillo, 2016, "From Softmax to Sparsemax", equations 4 to 6.
    """
    ordered, _ = torch.sort(scores, dim=-1, descending=True)
    sums = torch.cumsum(ordered, dim=-1)
    ranks = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    is_in = 1 + ranks * ordered > sums
    support = is_in.sum(dim=-1, keepdim=True)
    threshold = (torch.gather(sums, -1, support - 1) - 1) / support
    return torch.clamp(scores - threshold, min=0)


class _Block(nn.Module):
    """A gated linear unit over a linear layer with batch normalisation."""

    def __init__(self, width_in: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, 2 * width, bias=False)
        self.norm = nn.BatchNorm1d(2 * width)

    def forward(self, values: Tensor) -> Tensor:
        gated: Tensor = nn.functional.glu(self.norm(self.linear(values)))
        return gated


class TabNet(nn.Module):
    """Decides in steps; each looks at few features, and seldom at those looked at before.

    After Arik and Pfister, 2019, "TabNet: Attentive Interpretable Tabular Learning": a shared and
    an own block a step, sparsemax masks, relaxation ``gamma``. Batch normalisation is not split
    into ghost batches. Takes ``(rows, features)``, gives ``(rows, outputs)``.
    """

    def __init__(
        self, features: int, outputs: int, *, width: int = 16, steps: int = 3, gamma: float = 1.3
    ) -> None:
        super().__init__()
        self.width, self.gamma = width, gamma
        self.norm = nn.BatchNorm1d(features)
        self.shared = _Block(features, 2 * width)
        self.own = nn.ModuleList(_Block(2 * width, 2 * width) for _ in range(steps + 1))
        self.attend = nn.ModuleList(
            nn.Sequential(nn.Linear(width, features, bias=False), nn.BatchNorm1d(features))
            for _ in range(steps)
        )
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of rows."""
        x = self.norm(x)
        prior = torch.ones_like(x)
        attention = self._step(x, self.own[0])[:, self.width :]
        decision = torch.zeros_like(attention)
        for attend, own in zip(self.attend, list(self.own)[1:], strict=True):
            mask = sparsemax(attend(attention) * prior)
            prior = prior * (self.gamma - mask)
            values = self._step(mask * x, own)
            decision = decision + torch.relu(values[:, : self.width])
            attention = values[:, self.width :]
        scores: Tensor = self.head(decision)
        return scores

    def _step(self, values: Tensor, own: nn.Module) -> Tensor:
        shared: Tensor = self.shared(values)
        result: Tensor = (shared + own(shared)) * 0.5**0.5
        return result


class FeatureAttention(nn.Module):
    """Each feature is a token; tokens of one row attend to each other, as in SAINT's first half.

    Takes ``(rows, features)``, gives ``(rows, outputs)``. SAINT's other half attends from row to
    row, which would make an answer depend on the requests beside it; it is left out.
    """

    def __init__(self, features: int, outputs: int, *, width: int = 16) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(features, width) * 0.3)
        self.shift = nn.Parameter(torch.randn(features, width) * 0.3)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of rows."""
        tokens = x.unsqueeze(-1) * self.scale + self.shift
        scores: Tensor = self.head(self.encoder(tokens).mean(dim=1))
        return scores


class SequenceNet(nn.Module):
    """A GRU and an LSTM over ``(rows, steps, features)``, then one number a row, ``(rows,)``."""

    def __init__(self, features: int, *, width: int = 24) -> None:
        super().__init__()
        self.gru = nn.GRU(features, width, batch_first=True)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return one number for each sequence."""
        values, _ = self.gru(x)
        values, _ = self.lstm(values)
        result: Tensor = self.head(values[:, -1]).squeeze(-1)
        return result


class ConvNet(nn.Module):
    """Convolutions over ``(rows, channels, steps)``, then ``(rows, outputs)``."""

    def __init__(self, channels: int, outputs: int, *, width: int = 16) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(channels, width, 5, padding=2), nn.BatchNorm1d(width), nn.ReLU(),
            nn.Conv1d(width, width, 3, stride=2, dilation=2), nn.ReLU(),
        )  # fmt: skip
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of sequences."""
        scores: Tensor = self.head(self.body(x).mean(dim=-1))
        return scores


class TwoTowers(nn.Module):
    """A recommender: a tower for users, one for items, and how well their vectors agree.

    Takes ids ``(rows,)`` of both, int64; gives ``(rows,)`` between 0 and 1.
    """

    def __init__(self, users: int, items: int, *, width: int = 16) -> None:
        super().__init__()
        self.users = nn.Embedding(users, width)
        self.items = nn.Embedding(items, width)
        self.user_tower = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))
        self.item_tower = nn.Sequential(nn.Linear(width, 32), nn.ReLU(), nn.Linear(32, width))

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        """Return the chance that a user takes an item."""
        user_vector = self.user_tower(self.users(user))
        item_vector = self.item_tower(self.items(item))
        return torch.sigmoid((user_vector * item_vector).sum(dim=-1))
