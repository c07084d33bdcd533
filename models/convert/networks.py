"""Networks of PyTorch and TensorFlow: converted in a process of their own, proven here.

Their libraries take gigabytes, print at will and may crash on a damaged file; nothing of that is
left behind in the command. The child is ``network_child``.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from models.convert.bounded import DEFAULT_TIMEOUT_S, TookTooLong, run_bounded, too_slow
from models.convert.detect import NETWORKS
from models.convert.network_proof import prove
from models.convert.network_rows import read_cases
from models.convert.onnx_file import read_onnx
from models.convert.sample import read_sample
from models.errors import ConversionRefused
from models.graph_signature import graph_signature
from models.signature import Signature
from registry.ident import shown
from registry.manifest import JsonObject

# What each library needs, and where to ask for it.
NEEDED: Final = {
    "torch": ("torch", "onnxscript"),
    "keras": ("tensorflow", "keras", "tf2onnx"),
}
GRAPH_FILE: Final = "network.onnx"
CASES_FILE: Final = "cases.npz"
_CODE: Final = Path(__file__).resolve().parents[2]
_SAID_CHARACTERS: Final = 400


@dataclass(frozen=True, slots=True)
class Network:
    """A converted network: its graph, external data beside it, the record of the proof, whence."""

    graph: Path
    signature: Signature
    parity: JsonObject
    framework: str
    libraries: JsonObject


@dataclass(frozen=True, slots=True)
class Order:
    """What to convert. ``folder``: an empty one, which must stay until the push is over.

    ``is_code_trusted``: whether code in a file of Keras may be run. ``timeout_s``: how long the
    process that converts may take.
    """

    path: Path
    found: str
    sample: Path | None
    folder: Path
    is_code_trusted: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


def library_of(found: str) -> str:
    """Return which library opens a format that was found: a key of NETWORKS."""
    return next(library for library, formats in NETWORKS.items() if found in formats)


def convert_network(order: Order, tolerance: float) -> Network:
    """Convert and prove; raises ConversionRefused with the reason."""
    return finish_network(order, _ask_child(order), tolerance)


def finish_network(order: Order, answer: Mapping[str, Any], tolerance: float) -> Network:
    """Prove what a child left in the folder; ``answer`` is its own."""
    if "refused" in answer:
        raise ConversionRefused(str(answer["refused"]))
    graph = order.folder / GRAPH_FILE
    cases_file = order.folder / CASES_FILE
    record = prove(graph, read_cases(cases_file), tolerance).to_json()
    cases_file.unlink()
    libraries: JsonObject = {str(k): str(v) for k, v in answer["libraries"].items()}
    record |= {
        "precision": "float32",
        "sample": order.sample.name if order.sample is not None else None,
        "libraries": libraries,
    }
    signature = _signature(graph, order.sample)
    return Network(graph, signature, record, str(answer["framework"]), libraries)


def _signature(graph: Path, sample: Path | None) -> Signature:
    """Return what the graph declares, with the sample's column names where there is one matrix."""
    found = graph_signature(read_onnx(graph), ConversionRefused)
    rows = read_sample(sample) if sample is not None else None
    if rows is None or not rows.has_names or len(found.inputs) != 1:
        return found
    spec, columns = found.inputs[0], tuple(rows.columns)
    if spec.shape != (-1, len(columns)) or spec.name in columns:
        return found
    return replace(found, inputs=(replace(spec, columns=columns),))


def _ask_child(order: Order) -> Mapping[str, Any]:
    request = {
        "path": str(order.path.resolve()),
        "found": order.found,
        "sample": str(order.sample.resolve()) if order.sample is not None else None,
        "is_code_trusted": order.is_code_trusted,
    }
    with tempfile.TemporaryDirectory(prefix="ramrack-network-") as scratch:
        (order.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        command = [sys.executable, "-m", "models.convert.network_child", str(order.folder)]
        try:
            done = run_bounded(
                command, order.timeout_s, environment=_environment(scratch), folder=scratch
            )
        except TookTooLong:
            raise too_slow(order.path, order.timeout_s) from None
    try:
        answer: Mapping[str, Any] = json.loads(
            (order.folder / "answer.json").read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        raise ConversionRefused(
            f"{shown(order.path.name)}: {library_of(order.found)} could not open or convert it: "
            f"the process ended with exit code {done.code}: {_said(done.errors)}"
        ) from None
    return answer


def _environment(scratch: str) -> dict[str, str]:
    environment = dict(os.environ)
    paths = filter(None, (str(_CODE), environment.get("PYTHONPATH")))
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    environment["TMPDIR"] = scratch  # whatever the libraries leave there goes with it
    environment.setdefault("OMP_NUM_THREADS", "1")
    environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    environment.setdefault("CUDA_VISIBLE_DEVICES", "-1")
    return environment


def _said(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:_SAID_CHARACTERS] if lines else "it says nothing"
