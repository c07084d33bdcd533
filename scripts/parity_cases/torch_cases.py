"""PyTorch: exported programs and TorchScript of networks over tables and sequences.

Each begins with a layer that bounds its inputs, as networks over real tables need: the rows asked
hold missing values, infinities and numbers of 1e30.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from models.zoo.networks import ConvNet, FeatureAttention, SequenceNet, TabNet, mlp, save_program
from scripts.parity_cases.case import Case, Columns, Trained, table

_STEPS = 40


class _Bounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(torch.nan_to_num(x), -8.0, 8.0)


def _case(
    name: str, build: Callable[[], Any], data: str, form: str = "pt2", is_quick: bool = False
) -> Case:
    def train(rng: np.random.Generator) -> Trained:
        torch.set_num_threads(1)
        torch.manual_seed(int(rng.integers(1 << 30)))
        x, y = table(rng, data)
        rows, target = torch.from_numpy(x), torch.from_numpy(y).float()
        model = nn.Sequential(_Bounded(), build())
        optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
        for _ in range(_STEPS):
            optimiser.zero_grad()
            nn.functional.mse_loss(model(rows).reshape(len(rows)), target).backward()
            optimiser.step()
        model.eval()

        def save(folder: Path) -> Path:
            path = folder / f"model.{form}"
            if form == "pt2":
                return save_program(model, [rows[:2]], path)
            torch.jit.trace(model, rows[:1]).save(path)
            return path

        def answer(asked: Columns) -> dict[str, np.ndarray]:
            with torch.no_grad():
                return {"output": model(torch.from_numpy(asked["input"])).numpy()}

        def exact(asked: Columns) -> dict[str, np.ndarray]:
            with torch.no_grad():
                double = copy.deepcopy(model).double()
                return {"output": double(torch.from_numpy(asked["input"]).double()).numpy()}

        return Trained(save, {"input": x}, answer, exact=exact)

    return Case("torch", name, data, train, is_quick)


def _sequence(width: int, net: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Unflatten(1, (6 // width, width)), net)


CASES = [
    _case("mlp", lambda: mlp(6, 1), "grid", is_quick=True),
    _case("mlp", lambda: mlp(6, 1), "wide", form="pt"),
    _case("tabnet", lambda: TabNet(6, 1), "missing"),
    _case("attention", lambda: FeatureAttention(6, 1), "plain"),
    _case("gru-lstm", lambda: _sequence(2, SequenceNet(2)), "plain"),
    _case("conv", lambda: _sequence(6, ConvNet(1, 1)), "grid", form="pt"),
]
