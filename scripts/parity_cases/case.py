"""A case: how to train one small model, and how to ask it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Columns = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class Trained:
    """A model with rows to ask it.

    ``save`` writes it into a folder and returns the file. ``thresholds``: where its trees branch.
    ``rows``: input name to ``(rows, width)`` of training rows, float32 or text.
    ``largest``: the largest number among the edges.
    ``answer`` returns output name to array for such rows, as the library itself says;
    ``exact``: the same in double precision, where the library's own answer to a row depends on the
    rows beside it.
    """

    save: Callable[[Path], Path]
    rows: Columns
    answer: Callable[[Columns], Mapping[str, np.ndarray]]
    thresholds: np.ndarray = field(default_factory=lambda: np.zeros(0))
    is_nan_taken: bool = True
    is_infinity_taken: bool = True
    largest: float = 1e30
    exact: Callable[[Columns], Mapping[str, np.ndarray]] | None = None


@dataclass(frozen=True)
class Case:
    """One cell of the table: family x objective x kind of data.

    ``is_quick``: asked with ``--quick`` too.
    """

    family: str
    objective: str
    data: str
    train: Callable[[np.random.Generator], Trained]
    is_quick: bool = False

    @property
    def name(self) -> str:
        return (
            f"{self.family}-{self.objective}-{self.data}".replace(":", "-")
            .replace("+", ".")
            .lower()
        )


def table(rng: np.random.Generator, data: str, rows: int = 800) -> tuple[np.ndarray, np.ndarray]:
    """Return features ``(rows, 6)`` float32 of a kind, and a target that depends on them."""
    x = rng.normal(size=(rows, 6)).astype(np.float32)
    if data == "grid":
        x = (rng.integers(-50, 50, size=(rows, 6)) / 10).astype(np.float32)
    elif data == "wide":
        x = (x * 10.0 ** rng.integers(-20, 20, size=(rows, 6))).astype(np.float32)
    scaled = np.tanh(x.astype(np.float64))
    y = scaled[:, 0] * scaled[:, 1] * 2 + scaled[:, 2] - scaled[:, 3]
    if data == "missing":
        x[rng.random(x.shape) < 0.1] = np.nan
    return x, y


def target_of(objective: str, y: np.ndarray) -> np.ndarray:
    """Return a target that the objective takes: classes, counts or positive numbers.

    Several columns for "labels" (each 0 or 1) and "kinds" (targets of three and two classes).
    """
    name = objective.lower()
    if name.startswith(("labels", "multilog", "multicross")):
        return np.stack([y > 0.3, y < 0.5, np.abs(y) > 1.0], axis=1).astype(int)
    if name == "kinds":
        return np.stack([np.digitize(y, [-0.7, 0.7]), (y > 0.3).astype(int)], axis=1)
    if "rank" in name or "ndcg" in name or name == "map":
        return np.digitize(y, [-1.0, 0.0, 1.0])
    if "multi" in name:
        return np.digitize(y, [-0.7, 0.7])
    if any(
        word in name
        for word in ("binary", "logloss", "logistic", "entropy", "focal", "hinge", "pairlogit")
    ):
        return (y > 0.3).astype(int)
    if any(word in name for word in ("cox", "aft", "squaredlog")):
        return np.exp(y)
    if "poisson" in name:
        return np.floor(np.exp(y))
    if any(word in name for word in ("gamma", "tweedie")):
        return np.exp(y)
    return y


def flagged(probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of a classifier of several labels a row."""
    return {"label": (probabilities > 0.5).astype(np.int64), "probabilities": probabilities}


def classified(labels: Any, probabilities: np.ndarray) -> dict[str, np.ndarray]:
    """Return the outputs of a classifier: two classes may come as the second's probability."""
    if probabilities.ndim == 1:
        probabilities = np.stack([1 - probabilities, probabilities], axis=1)
    return {
        "label": np.asarray(labels)[probabilities.argmax(axis=1)],
        "probabilities": probabilities,
    }
