"""Computing a graph with OpenVINO, which has bfloat16 kernels where the processor does.

The library is of an extra and is imported when the first such version is opened. Its file of
weights is mapped while it reads the graph, but each kernel copies its weights into an order (and a
precision) of its own: what a version takes is private to each worker, and is measured as that.
"""

from __future__ import annotations

import importlib
import importlib.util
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.errors import InputRefused, LoadFailed, RunFailed, RunTerminated
from models.memory import trim
from models.runtime.outputs import Outputs
from models.runtime.warm_up import warmed
from models.servable import Array, LoadSpec, numpy_dtype
from models.signature import MAX_TENSOR_SPECS, Signature
from registry.ident import digest_hex, shown

RUNTIME_NAME: Final = "openvino"
# "int8": what is multiplied with 8-bit weights is rounded as well, in groups of its own row as long
# as the weights' blocks, so that whole numbers are multiplied. All else is computed in float32.
PRECISIONS: Final[Mapping[str, Mapping[str, object]]] = {
    "f32": {"INFERENCE_PRECISION_HINT": "f32"},
    "bf16": {"INFERENCE_PRECISION_HINT": "bf16"},
    "int8": {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 64},
}
MISSING: Final = (
    "the Python module 'openvino' is missing: type `pip install 'ramrack[openvino]'` "
    "in the server's environment"
)
_MAX_REASON: Final = 400
_MARK: Final = "ramrack/mark"
_PATH: Final = re.compile(r"(?<![\w/.])/[^\s\"':,;()\[\]]+")
_SOURCE: Final = re.compile(r"(?:Exception from|Check '[^']*' failed at) \S+:\d+:?")
_lock = threading.Lock()
_core: Any = None


def prepare() -> None:
    """Import the library and find the processor, or raise LoadFailed saying what to type."""
    _shared_core()


def has_bf16() -> bool:
    """Tell whether this processor computes bfloat16 faster than float32; raises LoadFailed."""
    return "BF16" in _shared_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


class OpenvinoLoader:
    """Loads versions that the inspection child has passed; one for a process."""

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def load(self, spec: LoadSpec) -> OpenvinoServable:
        """Compile and warm up a version, or raise LoadFailed."""
        graph = spec.objects_dir / digest_hex(spec.manifest.graph)
        compiled = partial(
            compile_graph, graph, spec.threads or self._threads,
            spec.manifest.runtime.get("precision", "f32"),
        )  # fmt: skip
        return warmed(OpenvinoServable(compiled, spec.inspection.signature))


def compile_graph(graph: Path, threads: int, precision: object) -> Any:
    """Return a compiled graph; the names of its tensors are those of the ONNX file.

    ``precision``: one of PRECISIONS; "bf16" is float32 where the processor has no bfloat16.
    """
    hints = PRECISIONS.get(precision) if isinstance(precision, str) else None
    if hints is None:
        raise LoadFailed(
            f"runtime.precision {shown(precision)} must be one of {', '.join(PRECISIONS)}"
        )
    if not graph.is_file():
        raise LoadFailed("its graph object is not in the store")
    core = _shared_core()
    if precision == "bf16" and not has_bf16():
        hints = PRECISIONS["f32"]
    options = {
        # Explicit, and in one stream: left open it takes all cores of the machine for each version.
        "INFERENCE_NUM_THREADS": threads,
        "NUM_STREAMS": 1,
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
        **hints,
    }
    try:
        model = core.read_model(str(graph))
        _add_mark(model)
        return core.compile_model(model, "CPU", options)
    # The library raises RuntimeError for whatever it finds.
    except Exception as error:
        raise LoadFailed(f"OpenVINO refuses the graph: {_clean(error)}") from error


def _add_mark(model: Any) -> None:
    """Let each run give back a number of its own, once all of its outputs were computed.

    A run whose shapes do not fit ends early without an error, and its outputs then are those of the
    run before: another caller's (2026.4). The mark is computed last of all, from one value of each
    output, so that it is this run's only if they are.
    """
    ops = importlib.import_module("openvino.opset13")
    first = ops.constant(np.zeros(1, np.int64))
    flat = ops.constant(np.array([-1], np.int64))
    axis = ops.constant(np.zeros((), np.int64))
    given = ops.parameter([1], np.int64, name=_MARK)
    given.output(0).set_names({_MARK})
    mark = given
    for port in model.outputs:
        values = ops.reshape(port.get_node().input_value(0), flat, False)
        value = ops.gather(values, first, axis)
        mark = ops.add(mark, ops.convert(ops.equal(value, value), "i64"))
    model.add_parameters([given])
    # The last output: those of the graph keep their places.
    model.add_results([ops.result(mark)])


def _check_alike(feeds: Mapping[str, Array]) -> None:
    """Raise InputRefused where inputs by rows differ in size, as far as all have it.

    The library reads past the end of the smaller one, and has crashed there. Encoders take inputs
    of one size each; what else does not fit is found by the mark.
    """
    dims = min((array.ndim for array in feeds.values()), default=0)
    sizes = {array.shape[:dims] for array in feeds.values()}
    if len(sizes) > 1:
        found = ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
        raise InputRefused(f"the sizes of the inputs do not fit together: {found}")


@dataclass(frozen=True, slots=True)
class _Began:
    """How often runs had been ended, and the graph compiled anew, when a run began."""

    terminations: int
    compilations: int


class OpenvinoServable:
    """One compiled graph. ``run`` may be called from any thread, several at a time."""

    def __init__(self, compiled: Callable[[], Any], signature: Signature) -> None:
        self._compile = compiled
        self._compiled: Any = compiled()
        self._signature = signature
        self._outputs = Outputs(signature)
        self._places = _places(self._compiled, signature)
        self._idle: list[Any] = []
        self._terminations = self._compilations = self._marks = 0
        self._last = len(self._compiled.outputs) - 1  # where the mark is
        self._lock = threading.Lock()

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        return self._signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs``; raises InputRefused, RunFailed or RunTerminated."""
        names = self._outputs.chosen(outputs)
        feeds = self._feeds(inputs)
        rowwise = [spec for spec in self._signature.inputs if spec.shape[:1] == (-1,)]
        _check_alike({spec.name: feeds[spec.name] for spec in rowwise})
        if any(not len(inputs[spec.name]) for spec in rowwise):
            return self._outputs.no_rows(names)
        if not names:
            return []
        request, began, mark = self._begin()
        feeds[_MARK] = np.array([mark], np.int64)
        try:
            results = request.infer(feeds, share_inputs=True)
            if not mark <= int(results[self._last][0]) <= mark + self._last:
                raise InputRefused(
                    "OpenVINO gave up the run: the sizes of the inputs do not fit together"
                )
            # Copied: the next run of this request writes into the same memory.
            arrays = [np.array(results[self._places[name]], copy=True) for name in names]
        except InputRefused:
            self._begin_anew()
            raise
        # The library raises RuntimeError and TypeError for whatever it finds.
        except Exception as error:
            self._begin_anew()
            raise RunFailed(f"OpenVINO: {_clean(error)}") from error
        self._end(request, began)
        if self._terminations != began.terminations:
            raise RunTerminated("the run was ended because it took too long")
        return [self._outputs.typed(name, a) for name, a in zip(names, arrays, strict=True)]

    def terminate(self) -> None:
        """Let all runs under way raise RunTerminated once they end.

        The library's own cancel is left alone: after it the next run answers with the shape of the
        one before, and so with rows of another caller (2026.4).
        """
        with self._lock:
            self._terminations += 1

    def close(self) -> None:
        """Give back all memory. No run may be under way. A second call does nothing."""
        with self._lock:
            self._idle.clear()
            compiled, self._compiled = self._compiled, None
            self._places = {}
        if compiled is not None:
            del compiled
            trim()

    def _begin_anew(self) -> None:
        """Compile again: what was given up leaves sizes behind that later runs would take."""
        with self._lock:
            if self._compiled is not None:
                self._idle.clear()
                self._compilations += 1
                self._compiled = self._compile()

    def _begin(self) -> tuple[Any, _Began, int]:
        with self._lock:
            if self._compiled is None:
                raise RunFailed("the version is closed")
            request = self._idle.pop() if self._idle else self._compiled.create_infer_request()
            # Far enough apart for what each output adds to it.
            self._marks += MAX_TENSOR_SPECS + 1
            return request, _Began(self._terminations, self._compilations), self._marks

    def _end(self, request: Any, began: _Began) -> None:
        with self._lock:
            if self._compiled is not None and began.compilations == self._compilations:
                self._idle.append(request)

    def _feeds(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        feeds = {}
        for spec in self._signature.inputs:
            array = inputs.get(spec.name)
            if array is None:
                raise InputRefused(f"input {spec.name!r} is missing")
            if array.dtype != numpy_dtype(spec.datatype):
                raise InputRefused(
                    f"input {spec.name!r}: got {array.dtype}, expected {spec.datatype}"
                )
            if array.ndim != len(spec.shape):
                raise InputRefused(
                    f"input {spec.name!r}: got shape {list(array.shape)}, "
                    f"expected {list(spec.shape)}"
                )
            feeds[spec.name] = np.ascontiguousarray(array)
        if len(inputs) > len(feeds):
            raise InputRefused(f"input {shown(min(set(inputs) - set(feeds)))} is unknown")
        return feeds


def _places(compiled: Any, signature: Signature) -> dict[str, int]:
    """Return the index of each output; raises LoadFailed where names or texts do not fit."""
    for spec in (*signature.inputs, *signature.outputs):
        if spec.datatype == "BYTES":
            raise LoadFailed(f"{shown(spec.name)} is BYTES: OpenVINO computes numbers only")
    given = {name for port in compiled.inputs for name in port.get_names()}
    for spec in signature.inputs:
        if spec.name not in given:
            raise LoadFailed(f"input {shown(spec.name)} is not in the compiled graph")
    places = {
        name: index for index, port in enumerate(compiled.outputs) for name in port.get_names()
    }
    for spec in signature.outputs:
        if spec.name not in places:
            raise LoadFailed(f"output {shown(spec.name)} is not in the compiled graph")
    return places


def _shared_core() -> Any:
    global _core
    with _lock:
        if _core is None:
            if importlib.util.find_spec("openvino") is None:
                raise LoadFailed(MISSING)
            _core = importlib.import_module("openvino").Core()
        return _core


def _clean(error: Exception) -> str:
    text = _PATH.sub("<file>", _SOURCE.sub("", str(error)))
    text = " ".join(text.split())
    return text[:_MAX_REASON] or type(error).__name__
