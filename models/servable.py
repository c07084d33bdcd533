"""The loader protocol: what every runtime gives to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from models.signature import Signature, parse_signature
from registry.manifest import JsonObject, Manifest

# One tensor. BYTES tensors are object arrays whose elements are ``str``, or ``bytes`` where the
# bytes are not UTF-8.
Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What the throwaway child found out about a version before any worker touched it.

    ``signature``: as the graph really answers (declared shapes are often wrong).
    ``is_batchable``: rows of different requests may share a run; ``batch_reason`` says why (not).
    ``run_s``: median seconds of a run with one row. ``load_s``: seconds to a usable session.
    ``private_bytes``: anonymous memory that each worker will hold for this version.
    ``mode``: how workers hold the weights (``private``, ``mapped`` or ``packed``), and
    ``mode_reason`` why so. ``graph``: digest of the graph object that workers open; empty: the
    manifest's. ``resident``: digest to bytes of all that serving and loading read, once a machine;
    empty: the manifest's graph and tensors. The bytes are those at the start of the object: what
    loading alone reads lies behind them. ``has_prepacking``: the runtime may copy weights into the
    order that its kernels like. ``drift``: how its golden rows are answered otherwise here than
    when it was pushed; empty: they are not.
    """

    signature: Signature
    is_batchable: bool
    batch_reason: str
    has_control_flow: bool
    run_s: float
    load_s: float
    private_bytes: int
    mode: str = "private"
    mode_reason: str = ""
    graph: str = ""
    resident: Mapping[str, int] = field(default_factory=dict)
    has_prepacking: bool = True
    drift: str = ""

    def to_json(self) -> JsonObject:
        """Return the JSON form, for the wire and for the persisted state."""
        document: JsonObject = asdict(self)
        document["signature"] = self.signature.to_json()
        return document


def parse_inspection(document: Mapping[str, Any]) -> Inspection:
    """Return an Inspection from its JSON form; raises InvalidInput or KeyError on a foreign one."""
    return Inspection(
        signature=parse_signature(document["signature"]),
        is_batchable=bool(document["is_batchable"]),
        batch_reason=str(document["batch_reason"]),
        has_control_flow=bool(document["has_control_flow"]),
        run_s=float(document["run_s"]),
        load_s=float(document["load_s"]),
        private_bytes=int(document["private_bytes"]),
        # A state that an older release persisted says nothing of these.
        mode=str(document.get("mode", "private")),
        mode_reason=str(document.get("mode_reason", "")),
        graph=str(document.get("graph", "")),
        resident={str(k): int(v) for k, v in document.get("resident", {}).items()},
        has_prepacking=bool(document.get("has_prepacking", True)),
        drift=str(document.get("drift", "")),
    )


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """All that a loader needs. ``objects_dir`` is the store's flat folder of objects."""

    model: str
    version: int
    manifest: Manifest
    objects_dir: Path
    threads: int
    inspection: Inspection


class Servable(Protocol):
    """A version that can compute. ``run`` may be called from any thread, several at a time."""

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        ...

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs`` (default: all, in signature order), one array for each name.

        Raises InputRefused (the graph refused the values), RunFailed, or RunTerminated.
        """
        ...

    def terminate(self) -> None:
        """End all runs under way; each raises RunTerminated. Later runs are not affected."""
        ...

    def close(self) -> None:
        """Give back all memory. No run may be under way. A second call does nothing."""
        ...


class Loader(Protocol):
    """Makes servables; one loader a process."""

    def load(self, spec: LoadSpec) -> Servable:
        """Load and warm up a version, or raise LoadFailed saying what to do about it."""
        ...


def rows_of(array: Array) -> int:
    """Return the rows of a tensor: its first dimension, or 1 for a scalar."""
    return int(array.shape[0]) if array.ndim else 1


def numpy_dtype(datatype: str) -> np.dtype[Any]:
    """Return the numpy dtype of a V2 datatype; BYTES is ``object``."""
    return _DTYPES[datatype]


_DTYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(object),
}
