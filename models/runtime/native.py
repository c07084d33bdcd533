"""Computing a version with the library that trained it, where no graph answers as the library does.

Only formats that run no code are opened. Each call uses one thread: requests share the cores.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, Protocol, TypeAlias

import numpy as np

from models.errors import LoadFailed, RunFailed, RunTerminated
from models.memory import trim
from models.runtime.native_catboost import DTYPE as CATBOOST_DTYPE
from models.runtime.native_catboost import CatboostEngine, catboost_module
from models.runtime.native_inputs import NativeInputs
from models.runtime.native_lightgbm import DTYPE as LIGHTGBM_DTYPE
from models.runtime.native_lightgbm import LightgbmEngine, lightgbm_library
from models.runtime.native_xgboost import DTYPE as XGBOOST_DTYPE
from models.runtime.native_xgboost import XgboostEngine, xgboost_library
from models.runtime.outputs import Outputs
from models.runtime.warm_up import warmed
from models.servable import Array, LoadSpec
from models.signature import Signature
from registry.ident import digest_hex, shown
from registry.manifest import JsonObject

RUNTIME_NAME: Final = "native"


class Engine(Protocol):
    """A library's predictor over one table."""

    def predict(self, table: Array) -> Array:
        """Return ``(rows,)`` or ``(rows, k)`` for ``(rows, features)``; may run several at once."""
        ...

    def close(self) -> None:
        """Give back all memory."""
        ...


EngineFactory: TypeAlias = Callable[[Path, JsonObject, int], Engine]
_ENGINES: Final[Mapping[str, tuple[EngineFactory, np.dtype[np.floating]]]] = {
    "lightgbm": (LightgbmEngine, LIGHTGBM_DTYPE),
    "xgboost": (XgboostEngine, XGBOOST_DTYPE),
    "catboost": (CatboostEngine, CATBOOST_DTYPE),
}
_OUTPUTS: Final = (("prediction",), ("label", "probabilities"))


class NativeLoader:
    """Loads versions that the inspection child has passed; one for a process."""

    def load(self, spec: LoadSpec) -> NativeServable:
        """Open and warm up a version, or raise LoadFailed."""
        path = spec.objects_dir / digest_hex(spec.manifest.graph)
        return warmed(open_native(path, spec.manifest.runtime, spec.inspection.signature))


def open_native(path: Path, runtime: JsonObject, signature: Signature) -> NativeServable:
    """Return the servable of a model file, or raise LoadFailed."""
    if not path.is_file():
        raise LoadFailed("its model object is not in the store")
    library = _library(runtime)
    factory, dtype = _ENGINES[library]
    inputs = NativeInputs(signature, dtype, takes_text=library == "catboost")
    names = tuple(spec.name for spec in signature.outputs)
    if names not in _OUTPUTS:
        raise LoadFailed(f"signature.outputs {shown(names)} must be one of {_OUTPUTS}")
    return NativeServable(factory(path, runtime, inputs.features), inputs, signature)


def prepare(runtime: JsonObject) -> None:
    """Open the library that a version needs, or raise LoadFailed saying how to install it."""
    library = _library(runtime)
    if library == "lightgbm":
        lightgbm_library()
    elif library == "xgboost":
        xgboost_library()
    else:
        catboost_module()


def _library(runtime: JsonObject) -> str:
    library = runtime.get("library")
    if not isinstance(library, str) or library not in _ENGINES:
        raise LoadFailed(
            f"runtime.library {shown(library)} is not known here: use one of {', '.join(_ENGINES)}"
        )
    return library


class NativeServable:
    """One model of a library. ``run`` may be called from any thread, several at a time."""

    def __init__(self, engine: Engine, inputs: NativeInputs, signature: Signature) -> None:
        self._engine: Engine | None = engine
        self._inputs = inputs
        self._signature = signature
        self._outputs = Outputs(signature)
        self._labels = _labels(signature)
        # A row may have several labels: each output has a column for each of them.
        self._is_multilabel = self._labels is not None and len(signature.outputs[0].shape) == 2
        self._lock = threading.Lock()
        self._terminations = 0

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        return self._signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs``; raises InputRefused, RunFailed or RunTerminated."""
        names = self._outputs.chosen(outputs)
        table = self._inputs.table(inputs)
        if not len(table):
            return self._outputs.no_rows(names)
        if not names:
            return []
        engine, began = self._engine, self._terminations
        if engine is None:
            raise RunFailed("the version is closed")
        raw = engine.predict(table)
        if self._terminations != began:
            raise RunTerminated("the run was ended because it took too long")
        answers = self._answers(raw)
        return [self._outputs.typed(name, answers[name]) for name in names]

    def terminate(self) -> None:
        """Let all runs under way raise RunTerminated; no library here can be stopped within one."""
        with self._lock:
            self._terminations += 1

    def close(self) -> None:
        """Give back all memory. No run may be under way. A second call does nothing."""
        with self._lock:
            engine, self._engine = self._engine, None
        if engine is not None:
            engine.close()
            trim()

    def _answers(self, raw: Array) -> dict[str, Array]:
        if self._labels is None:
            return {"prediction": raw}
        if self._is_multilabel:
            if raw.shape != (len(raw), len(self._labels)):
                raise RunFailed(f"{raw.shape} probabilities for {len(self._labels)} labels")
            return {"label": (raw > 0.5).astype(np.int64), "probabilities": raw}
        if raw.ndim == 1:  # the second class of two
            raw = np.stack([1 - raw, raw], axis=1)
        if raw.shape[1] != len(self._labels):
            raise RunFailed(f"{raw.shape[1]} probabilities for {len(self._labels)} classes")
        return {"label": self._labels[raw.argmax(axis=1)], "probabilities": raw}


def _labels(signature: Signature) -> Array | None:
    outputs = {spec.name: spec for spec in signature.outputs}
    if "probabilities" not in outputs:
        return None
    labels = outputs["probabilities"].labels
    if not labels:
        raise LoadFailed("signature.outputs: 'probabilities' must have labels")
    if len(outputs["label"].shape) == 2:
        if outputs["label"].datatype != "INT64":
            raise LoadFailed("signature.outputs: 'label' of several labels a row must be INT64")
        return np.array(labels, dtype=object)
    is_text = outputs["label"].datatype == "BYTES"
    if not all(isinstance(label, str) is is_text for label in labels):
        raise LoadFailed("signature.outputs: the labels do not fit the datatype of 'label'")
    return np.array(labels, dtype=object if is_text else np.int64)
