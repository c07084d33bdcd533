"""Models of every library pushed to one server, and asked over HTTP beside the library itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import joblib
import numpy as np

from loadtest.lab.tensors import decode, encode
from models.convert import ConvertOptions, convert
from tests.process.server import RunningServer

TOLERANCE = 1e-5
ROWS = 2100
_ROWS_A_REQUEST = 700
# As tensors do, in the order in which numpy sorts them out.
Arrays = Mapping[str, np.ndarray]


@dataclass
class Pushed:
    """A version that serves."""

    server: RunningServer
    name: str
    inputs: dict[str, str]
    outputs: list[dict[str, Any]]
    manifest: Any

    def ask(self, arrays: Arrays, rows_a_request: int = _ROWS_A_REQUEST) -> dict[str, np.ndarray]:
        """Return all outputs, asked in binary tensors."""
        count = len(next(iter(arrays.values())))
        parts = []
        with httpx.Client(base_url=self.server.url, trust_env=False, timeout=60) as client:
            for at in range(0, count, rows_a_request):
                part = {name: array[at : at + rows_a_request] for name, array in arrays.items()}
                parts.append(self._infer(client, part))
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def _infer(self, client: httpx.Client, part: Arrays) -> dict[str, np.ndarray]:
        body, head_bytes = encode(part, self.inputs)
        answer = client.post(
            f"/v2/models/{self.name}/infer", content=body,
            headers={"Inference-Header-Content-Length": str(head_bytes)},
        )  # fmt: skip
        assert answer.status_code == 200, answer.text
        return decode(answer.content, int(answer.headers["inference-header-content-length"]))


def push(server: RunningServer, name: str, model: object, folder: Path, **options: Any) -> Pushed:
    """Convert a model (or a file of one), publish it, load it."""
    path = model if isinstance(model, Path) else folder / f"{name}.joblib"
    if path is not model:
        joblib.dump(model, path)
    package = convert(name, path, ConvertOptions(**options))
    for item in package.objects:
        body = b"".join(item.chunks())
        server.expect(server.admin("PUT", f"/admin/v1/blobs/{item.digest}", content=body))
    published = server.admin(
        "POST", f"/admin/v1/models/{name}/versions", json=package.manifest.to_json()
    )
    version = server.expect(published)["version"]
    server.expect(server.load(name, version))
    server.expect(server.admin("PUT", f"/admin/v1/models/{name}/route",
                               json={"split": [{"version": version, "weight": 100}]}))  # fmt: skip
    about = server.expect(server.data("GET", f"/v2/models/{name}"))
    inputs = {spec["name"]: spec["datatype"] for spec in about["inputs"]}
    return Pushed(server, name, inputs, about["outputs"], package.manifest)


def rows_of(
    x: np.ndarray, thresholds: Any, rng: np.random.Generator, *, finite: bool = False
) -> np.ndarray:
    """Return float32 rows: a third of training, a third random, a third edges.

    Edges are every threshold with both its neighbours, zeros, tiny and huge numbers, and, unless
    ``finite``, NaN and infinities.
    """
    third = ROWS // 3
    split = np.asarray(thresholds, dtype=np.float32)
    split = split[np.isfinite(split)]
    with np.errstate(over="ignore"):
        around = [split, np.nextafter(split, np.float32(-np.inf)),
                  np.nextafter(split, np.float32(np.inf))]  # fmt: skip
    special = [0.0, -0.0, 1e30, 1e-30] + ([] if finite else [np.nan, np.inf, -np.inf])
    edges = np.concatenate([*around, np.array(special, np.float32)])
    seen = x[rng.integers(0, len(x), third)]
    drawn = rng.normal(size=seen.shape)
    chosen = rng.choice(edges, size=seen.shape)
    return np.concatenate([seen, drawn, chosen]).astype(np.float32)


def close(got: np.ndarray, expected: Any) -> None:
    """Fail unless each number is within the tolerance; NaN equals NaN."""
    expected = np.asarray(expected, dtype=np.float64)
    got = np.asarray(got, dtype=np.float64)
    assert got.shape == expected.shape
    with np.errstate(invalid="ignore"):
        off = np.abs(got - expected) > TOLERANCE * np.maximum(1.0, np.abs(expected))
    assert not (off & (got != expected)).any(), f"{off.sum()} of {off.size} differ"
    assert (np.isnan(got) == np.isnan(expected)).all()


def same_class(found: Arrays, labels: Any, probabilities: Any) -> None:
    """Fail unless probabilities are close, and labels equal where the best two are apart."""
    probabilities = np.asarray(probabilities)
    if probabilities.ndim == 1:
        probabilities = np.stack([1 - probabilities, probabilities], axis=1)
    close(found["probabilities"], probabilities)
    top = np.sort(probabilities, axis=1)
    is_clear = top[:, -1] - top[:, -2] > 2 * TOLERANCE
    expected = np.asarray(labels)[probabilities.argmax(axis=1)].astype(str)
    assert (found["label"].astype(str) == expected)[is_clear].all()
