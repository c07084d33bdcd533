"""Computing a version with ONNX Runtime, its tensors mapped from the store's objects."""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnx.helper

from models.errors import InputRefused, LoadFailed, OutOfMemory, RunFailed, RunTerminated
from models.graph_signature import ZIPMAP_ADVICE
from models.memory import trim
from models.runtime.ort_errors import clean, is_out_of_memory, run_error
from models.runtime.ort_library import OrtError
from models.runtime.ort_session import Node, RunOptions, Session, SessionConfig
from models.runtime.strings import from_runtime, to_runtime
from models.runtime.warm_up import warmed
from models.servable import Array, LoadSpec, numpy_dtype
from models.signature import Signature, TensorSpec
from registry.ident import digest_hex, shown

RUNTIME_NAME: Final = "onnx"
_log = logging.getLogger(__name__)
_DATATYPES: Final[dict[str, str]] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}
# What the runtime raises, and what reading its answers can.
RUNTIME_ERRORS: Final[tuple[type[Exception], ...]] = (
    OrtError, MemoryError, RuntimeError, TypeError, ValueError,
)  # fmt: skip


class OnnxLoader:
    """Loads versions that the inspection child has passed; one for a process.

    A graph is not checked again here: objects never change, and their digests are verified before.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        # A graph must not choose its own number of threads.
        os.environ.pop("ORT_LOAD_CONFIG_FROM_MODEL", None)

    def load(self, spec: LoadSpec) -> OnnxServable:
        """Map, warm up and return a version, or raise LoadFailed."""
        if spec.manifest.runtime.get("name") != RUNTIME_NAME:
            raise LoadFailed(
                f"runtime {shown(spec.manifest.runtime.get('name'))} is not known here: "
                f"use {RUNTIME_NAME!r}"
            )
        session = self._open(spec)
        return warmed(OnnxServable(session, spec.inspection.signature))

    def _open(self, spec: LoadSpec) -> Session:
        """Open what was built for this machine, or else the version itself, which always loads.

        The memory that the second form takes is measured and reported like any other.
        """
        threads, inspection = spec.threads or self._threads, spec.inspection
        if inspection.graph:
            try:
                packed = spec.objects_dir / digest_hex(inspection.graph)
                return open_session(packed, threads, is_packed=True)
            except LoadFailed as error:
                name = f"{spec.model}/{spec.version}"
                _log.warning("packed weights of %s cannot be used: %s", name, error)
        graph = spec.objects_dir / digest_hex(spec.manifest.graph)
        return open_session(graph, threads, has_prepacking=inspection.has_prepacking)


class OnnxServable:
    """One session. ``run`` may be called from any thread, several at a time."""

    def __init__(self, session: Session, signature: Signature) -> None:
        self._session: Session | None = session
        self._signature = signature
        self._inputs = tuple(
            (spec.name, numpy_dtype(spec.datatype), spec.datatype == "BYTES", len(spec.shape), spec)
            for spec in signature.inputs
        )
        self._outputs = {spec.name: spec for spec in signature.outputs}
        self._names = [spec.name for spec in signature.outputs]
        self._input_dims = {node.name: tuple(node.shape) for node in session.get_inputs()}
        self._output_dims = {node.name: tuple(node.shape) for node in session.get_outputs()}
        self._dtypes = {spec.name: numpy_dtype(spec.datatype) for spec in signature.outputs}
        self._rowwise = [
            i for i, spec in enumerate(signature.inputs) if spec.shape and spec.shape[0] == -1
        ]
        self._running: dict[int, RunOptions] = {}
        # Of runs that were not told to end: making them anew takes a tenth of a small run.
        self._idle: list[RunOptions] = []
        self._lock = threading.Lock()

    @property
    def signature(self) -> Signature:
        """What ``run`` takes and gives."""
        return self._signature

    def run(self, inputs: Mapping[str, Array], outputs: Sequence[str] | None = None) -> list[Array]:
        """Compute ``outputs``; raises InputRefused, RunFailed or RunTerminated.

        No rows in give no rows out without a run: kernels of the runtime have crashed on them.
        """
        names = self._names
        if outputs is not None:
            names = list(outputs)
            for name in names:
                self._output(name)
        feeds, shapes = self._feeds(inputs)
        for index in self._rowwise:
            if not shapes[index][0]:
                sizes = self._sizes_of(feeds)
                return [
                    _no_rows(self._output(name), self._output_dims[name], sizes) for name in names
                ]
        if not names:
            return []
        # Names and types of the inputs are the signature's by now.
        form = tuple(shapes) if outputs is None else (*shapes, *names)
        session, options = self._begin()
        try:
            results = session.run(names, feeds, options, form)
        except RUNTIME_ERRORS as error:
            if options.is_ended:
                raise RunTerminated("the run was ended because it took too long") from None
            raise run_error(error) from None
        finally:
            with self._lock:
                del self._running[id(options)]
                if not options.is_ended:
                    self._idle.append(options)
        dtypes = self._dtypes
        for index, name in enumerate(names):
            # The runtime's own binding may be asked for a type that it gives in another way.
            if results[index].dtype is not dtypes[name] or results[index].dtype.hasobject:
                results[index] = self._result(name, results[index])
        return results

    def terminate(self) -> None:
        """End all runs under way; each raises RunTerminated. Later runs are not affected."""
        with self._lock:
            for options in self._running.values():
                options.terminate()

    def close(self) -> None:
        """Give back all memory. No run may be under way. A second call does nothing."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()
            trim()

    def _begin(self) -> tuple[Session, RunOptions]:
        with self._lock:
            if self._session is None:
                raise RunFailed("the version is closed")
            options = self._idle.pop() if self._idle else RunOptions()
            self._running[id(options)] = options
            return self._session, options

    def _feeds(self, inputs: Mapping[str, Array]) -> tuple[dict[str, Array], list[tuple[int, ...]]]:
        """Return what the graph takes, with the shape of each, in the signature's order."""
        feeds: dict[str, Array] = {}
        shapes = []
        for name, dtype, is_text, dims, spec in self._inputs:
            array = inputs.get(name)
            if array is None:
                raise InputRefused(f"input {name!r} is missing")
            if array.dtype is not dtype and array.dtype != dtype:
                raise InputRefused(f"input {name!r}: got {array.dtype}, expected {spec.datatype}")
            shape = array.shape
            if len(shape) != dims:
                raise InputRefused(
                    f"input {name!r}: got shape {list(shape)}, expected {list(spec.shape)}"
                )
            if is_text:
                array = to_runtime(array, name)
            feeds[name] = array if array.flags.c_contiguous else np.ascontiguousarray(array)
            shapes.append(shape)
        if len(inputs) > len(feeds):
            unknown = min(set(inputs) - set(feeds))
            raise InputRefused(f"input {shown(unknown)} is unknown")
        return feeds, shapes

    def _output(self, name: str) -> TensorSpec:
        spec = self._outputs.get(name)
        if spec is None:
            raise InputRefused(f"output {shown(name)} is unknown")
        return spec

    def _sizes_of(self, feeds: Mapping[str, Array]) -> dict[object, int]:
        """Return the graph's named dimensions with their sizes in this request."""
        return {
            dim: size
            for name, array in feeds.items()
            for dim, size in zip(self._input_dims[name], array.shape, strict=False)
            if isinstance(dim, str)
        }

    def _result(self, name: str, result: object) -> Array:
        dtype = self._dtypes[name]
        if dtype.hasobject:
            return from_runtime(np.asarray(result, dtype=object))
        return np.asarray(result, dtype=dtype)


def open_session(
    graph: Path, threads: int, *, is_packed: bool = False, has_prepacking: bool = True
) -> Session:
    """Return a session over a graph object; ``location`` of its tensors is beside it.

    Raises LoadFailed. Tensors are mapped, and what no kernel repacks stays mapped. ``is_packed``:
    the graph is one that ``models.pack`` built. ``has_prepacking``: kernels may copy weights.
    """
    if is_packed and is_runtime_format(graph):
        return _open_runtime_format(graph, threads)
    entries = {}
    if not has_prepacking:
        entries["session.disable_prepacking"] = "1"
    # A packed one was optimised when it was built, and another pass would unmap what it moves.
    return create_session(
        graph, SessionConfig(threads, is_optimised=not is_packed, entries=entries)
    )


def _open_runtime_format(graph: Path, threads: int) -> Session:
    """Open a graph that the runtime reads where it is mapped.

    By its path the runtime copies the whole file first: a fifth of the memory that a load takes at
    its peak, and one read in which nothing else runs on this core (``models.reading`` says why).
    """
    entries = {
        "session.load_model_format": "ORT",
        # Its header wants the bytes to stay as long as the session does.
        "session.use_ort_model_bytes_directly": "1",
    }
    try:
        with graph.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise LoadFailed(f"the graph cannot be mapped: {os.strerror(error.errno or 0)}") from None
    except ValueError:
        # It was cut since its mark was read.
        raise LoadFailed("the graph cannot be mapped: its file is empty") from None
    session = create_session(mapped, SessionConfig(threads, is_optimised=False, entries=entries))
    # Kernels have copied what they need of it: from here on its pages count for nobody.
    mapped.madvise(mmap.MADV_DONTNEED)
    return session


def is_runtime_format(graph: Path) -> bool:
    """Tell a graph in the runtime's own format by the mark that its files carry."""
    try:
        with graph.open("rb") as file:
            return file.read(8)[4:] == b"ORTM"
    except OSError:
        return False  # the runtime says what is wrong with the file


def create_session(graph: Path | bytes | mmap.mmap, config: SessionConfig) -> Session:
    """Return a session over a graph, or raise LoadFailed, OutOfMemory where that is why."""
    try:
        return Session(graph, config)
    except RUNTIME_ERRORS as error:
        if is_out_of_memory(error):
            raise OutOfMemory(f"not enough memory to load it: {clean(str(error))}") from None
        raise LoadFailed(f"the runtime refuses the graph: {clean(str(error))}") from None


def prime(threads: int) -> None:
    """Pay once for what the first session of a process costs, so that it is not measured."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Identity", ["x"], ["y"])],
        "prime",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["rows"])],
        [onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["rows"])],
    )
    model = onnx.helper.make_model(
        graph, ir_version=8, opset_imports=[onnx.helper.make_opsetid("", 17)]
    )
    session = Session(model.SerializeToString(), SessionConfig(threads))
    session.run(["y"], {"x": np.zeros(1, np.float32)})
    session.close()


def check_session(session: Session, signature: Signature) -> None:
    """Raise LoadFailed unless the session takes and gives what the signature says."""
    for kind, declared, actual in (
        ("inputs", signature.inputs, session.get_inputs()),
        ("outputs", signature.outputs, session.get_outputs()),
    ):
        names = [spec.name for spec in declared]
        if names != [node.name for node in actual]:
            raise LoadFailed(
                f"signature.{kind}: {shown(names)} differs from the graph's "
                f"{shown([node.name for node in actual])}"
            )
        for spec, node in zip(declared, actual, strict=True):
            _check_tensor(f"{kind[:-1]} {shown(spec.name)}", spec, node, is_input=kind == "inputs")


def _check_tensor(what: str, spec: TensorSpec, node: Node, *, is_input: bool) -> None:
    if node.type.startswith(("seq(", "map(")):
        raise LoadFailed(f"{what}: {ZIPMAP_ADVICE}")
    datatype = _DATATYPES.get(node.type)
    if datatype != spec.datatype:
        raise LoadFailed(
            f"{what}: the signature says {spec.datatype}, the graph {datatype or node.type}"
        )
    if not is_input:
        return  # declared output shapes are often wrong: probing corrects them
    # Some exporters write an open size as 0 or -1 instead of a name.
    shape = [size if isinstance(size, int) and size > 0 else -1 for size in node.shape]
    fits = len(shape) == len(spec.shape) and all(
        mine == theirs or theirs == -1 for mine, theirs in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        raise LoadFailed(f"{what}: the signature says shape {list(spec.shape)}, the graph {shape}")


def _no_rows(spec: TensorSpec, dims: Sequence[object], sizes: Mapping[object, int]) -> Array:
    """Return the output of no rows: an open size is the input's of the same name, else 0."""
    if not spec.shape or spec.shape[0] != -1:
        raise InputRefused(
            f"a batch of no rows has no answer: output {spec.name!r} does not follow the rows"
        )
    names = dims if len(dims) == len(spec.shape) else [None] * len(spec.shape)
    shape = [
        size if size >= 0 else sizes.get(name, 0)
        for size, name in zip(spec.shape[1:], names[1:], strict=True)
    ]
    return np.empty((0, *shape), dtype=numpy_dtype(spec.datatype))
