"""One session of ONNX Runtime: what it takes and gives, and its runs over numpy arrays."""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.runtime.ort_frames import CODES, DTYPES, Form, Frame, Frames, tensor_over
from models.runtime.ort_library import (
    INVALID_ARGUMENT,
    InvalidArgument,
    OrtError,
    OrtLibrary,
    library,
    list_of,
)
from models.runtime.ort_texts import STRING, TextTooLong, empty_texts, fill_texts, read_texts
from models.servable import Array

_READ_ONLY: Final = 0x100
_FAIL: Final = 1
_TYPE_NAMES: Final = {
    1: "float", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
    8: "string", 9: "bool", 10: "float16", 11: "double", 12: "uint32", 13: "uint64",
    14: "complex64", 15: "complex128", 16: "bfloat16",
}  # fmt: skip
_CONTAINERS: Final = {2: "seq", 3: "map", 4: "opaque", 5: "sparse_tensor", 6: "optional"}
_TENSOR: Final = 1
_SILENT: Final = 4
_SEQUENTIAL: Final = 0
_ALL_OPTIMISATIONS: Final = 99
_MOST_NAMES: Final = 64
# Where the runtime writes type, place of the sizes, rank, and place of the numbers of an output.
_FORM: Final = list_of(c_int64, 4)


@dataclass(frozen=True, slots=True)
class Node:
    """An input or output. ``shape``: sizes, and names or None where a size is open."""

    name: str
    type: str
    shape: list[int | str | None]


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """How a session works. ``entries`` are the runtime's own keys and values.

    ``written_to``: where the graph is written as it was optimised.
    """

    threads: int
    is_optimised: bool = True
    written_to: Path | None = None
    entries: Mapping[str, str] = field(default_factory=dict)


class RunOptions:
    """What one run can be ended by from another thread."""

    def __init__(self) -> None:
        self._library = library()
        self.handle = self._library.made("CreateRunOptions").value
        self._library.call("RunOptionsSetRunLogSeverityLevel", self.handle, _SILENT)
        # Whether the run was told to end; it cannot be taken back.
        self.is_ended = False

    def terminate(self) -> None:
        """Tell the run to end; again is harmless."""
        if not self.is_ended:
            self.is_ended = True
            self._library.call("RunOptionsSetTerminate", self.handle)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self._library.functions["ReleaseRunOptions"](self.handle)


class Session:
    """An open graph. ``run`` may be called from any thread; ``close`` not while a run goes on."""

    def __init__(self, graph: Path | bytes | mmap.mmap, config: SessionConfig) -> None:
        """Open a graph; raises OrtError. The interpreter goes on meanwhile.

        A mapped graph is read where it lies, and stays mapped as long as the session.
        """
        self._library = library()
        self._functions = self._library.functions
        self._frames = Frames(self._library)
        self._run = self._functions["Run"]
        self._run_bound = self._functions["RunWithBinding"]
        self._handle: int | None = None
        self._graph: Array | None = None
        with _options(self._library, config) as options:
            environment = self._library.environment
            if isinstance(graph, Path):
                path = str(graph).encode()
                self._handle = self._library.made("CreateSession", environment, path, options).value
            else:
                self._graph = np.frombuffer(graph, np.uint8)
                self._handle = self._library.made(
                    "CreateSessionFromArray", environment, self._graph.ctypes.data,
                    self._graph.size, options,
                ).value  # fmt: skip
        self._inputs = self._nodes("Input")
        self._outputs = self._nodes("Output")
        self._required = frozenset(node.name for node in self._inputs)
        self._c_lists: dict[tuple[str, ...], Any] = {}

    def get_inputs(self) -> list[Node]:
        """Return what the graph takes, in its order."""
        return self._inputs

    def get_outputs(self) -> list[Node]:
        """Return what the graph gives, in its order."""
        return self._outputs

    def run(
        self,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        options: RunOptions | None = None,
        form: Form | None = None,
    ) -> list[Array]:
        """Compute the outputs of these names; arrays are contiguous. Raises OrtError.

        ``form``: what differs between runs of names, types, and shapes, from a caller who knows
        that nothing else does; it stands for all of it.
        """
        key = _form_of(names, feeds) if form is None else form
        idle = self._frames.idle(key)
        if idle:
            try:
                frame = idle.pop()
            except IndexError:
                pass  # another thread has just taken it
            else:
                try:
                    return self._run_frame(frame, names, feeds, options)
                finally:
                    idle.append(frame)
        if self._handle is None:
            raise OrtError(_FAIL, "the session is closed")
        found = self._run_plain(names, feeds, options)
        self._frames.learn(key, self._handle, names, feeds, found)
        return found

    def _run_frame(
        self,
        frame: Frame,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        options: RunOptions | None,
    ) -> list[Array]:
        try:
            for kept, array in zip(frame.inputs, feeds.values(), strict=True):
                kept[...] = array
        except TextTooLong:
            return self._run_plain(names, feeds, options)
        if frame.binding is None:
            return self._run_values(names, tuple(feeds), frame.values, options)
        is_proven = frame.is_proven or frame.mark()
        status = self._run_bound(
            self._handle, None if options is None else options.handle, frame.binding
        )
        if not status and (is_proven or frame.prove()):
            return [copy() for copy in frame.copies]
        frame.is_proven = False
        if status:
            self._library.error(status)  # gives its memory back
        # What is wrong with the input is wrong the ordinary way too.
        found = self._run_plain(names, feeds, options)
        # Only the frame failed: what comes out has not the same shape each time.
        self._frames.loosen()
        return found

    def _run_plain(
        self, names: Sequence[str], feeds: Mapping[str, Array], options: RunOptions | None
    ) -> list[Array]:
        # The runtime would hand nothing to kernels that take it for granted.
        missing = self._required - feeds.keys()
        if missing:
            raise InvalidArgument(INVALID_ARGUMENT, f"input {min(missing)!r} is missing")
        values = list_of(c_void_p, len(feeds))()
        try:
            for index, array in enumerate(feeds.values()):
                values[index] = self._value(array)
            return self._run_values(names, tuple(feeds), values, options)
        finally:
            for value in values:
                if value:
                    self._library.release_value(value)

    def _run_values(
        self,
        names: Sequence[str],
        feeds: tuple[str, ...],
        values: Any,
        options: RunOptions | None,
    ) -> list[Array]:
        """Run over the values of ``feeds``, in a C list, and copy what comes out."""
        results = list_of(c_void_p, len(names))()
        try:
            status = self._run(
                self._handle, options.handle if options is not None else None,
                self._c_names(feeds), values, len(feeds),
                self._c_names(tuple(names)), len(names), results,
            )  # fmt: skip
            if status:
                raise self._library.error(status)
            return [self._array(result or 0) for result in results]
        finally:
            for value in results:
                if value:
                    self._library.release_value(value)

    def close(self) -> None:
        """Give back all that it holds. The interpreter goes on meanwhile."""
        self._frames.forbid()
        handle, self._handle = self._handle, None
        if handle is not None:
            self._library.release_session(handle)
        self._graph = None

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            self.close()

    def _c_names(self, names: tuple[str, ...]) -> Any:
        found = self._c_lists.get(names)
        if found is None:
            found = (c_char_p * len(names))(*(name.encode() for name in names))
            # Callers may ask for outputs in any order; what is usual is among the first.
            if len(self._c_lists) < _MOST_NAMES:
                self._c_lists[names] = found
        return found

    def _value(self, array: Array) -> int | None:
        if array.dtype in CODES:
            return tensor_over(self._library, array)
        if array.dtype != object:
            raise InvalidArgument(INVALID_ARGUMENT, f"the runtime has no type {array.dtype}")
        return self._texts(array)

    def _texts(self, array: Array) -> int | None:
        library, made = self._library, empty_texts(self._library, array.shape)
        try:
            if array.size:
                fill_texts(library, made, array.ravel().tolist())
        except BaseException:
            library.release_value(made)
            raise
        return made.value

    def _array(self, value: int) -> Array:
        """Return a copy of a tensor."""
        library, written = self._library, _FORM()
        # Zeros, of which the type fills half of the first: the least half, on all it runs on.
        code_at = ctypes.addressof(written)
        status = library.form_of(value, code_at, code_at + 8, code_at + 16)
        if status:
            raise library.error(status)
        code, sizes, rank, _ = written
        shape: tuple[int, ...] = ()
        if rank:
            shape = tuple(library.view_of(sizes, 8 * rank, _READ_ONLY).cast("q"))
        if code == STRING:
            return read_texts(library, value, shape)
        dtype = DTYPES.get(code)
        if dtype is None:
            raise OrtError(_FAIL, f"an output has the type {_TYPE_NAMES.get(code, code)}")
        size = math.prod(shape) * dtype.itemsize
        if not size:
            return np.empty(shape, dtype)
        status = library.data_of(value, code_at + 24)
        if status:
            raise library.error(status)
        view = library.view_of(written[3], size, _READ_ONLY)
        return np.ndarray(shape, dtype, view).copy()

    def _nodes(self, kind: str) -> list[Node]:
        count = c_size_t()
        self._library.call(f"SessionGet{kind}Count", self._handle, ctypes.byref(count))
        return [self._node(kind, index) for index in range(count.value)]

    def _node(self, kind: str, index: int) -> Node:
        library, text = self._library, c_void_p()
        library.call(
            f"SessionGet{kind}Name", self._handle, index, library.allocator, ctypes.byref(text)
        )
        name = ctypes.string_at(text.value or 0).decode()
        library.call("AllocatorFree", library.allocator, text)
        info = library.made(f"SessionGet{kind}TypeInfo", self._handle, index)
        try:
            return Node(name, *self._described(info))
        finally:
            self._functions["ReleaseTypeInfo"](info)

    def _described(self, info: c_void_p) -> tuple[str, list[int | str | None]]:
        library, kind, code, count = self._library, c_int(), c_int(), c_size_t()
        library.call("GetOnnxTypeFromTypeInfo", info, ctypes.byref(kind))
        if kind.value != _TENSOR:
            return f"{_CONTAINERS.get(kind.value, 'unknown')}()", []
        # It belongs to ``info``.
        tensor = library.made("CastTypeInfoToTensorInfo", info)
        library.call("GetTensorElementType", tensor, ctypes.byref(code))
        library.call("GetDimensionsCount", tensor, ctypes.byref(count))
        sizes, names = (c_int64 * count.value)(), (c_char_p * count.value)()
        library.call("GetDimensions", tensor, sizes, count.value)
        library.call("GetSymbolicDimensions", tensor, names, count.value)
        shape: list[int | str | None] = [
            name.decode() if name else (size if size >= 0 else None)
            for size, name in zip(sizes, names, strict=True)
        ]
        return f"tensor({_TYPE_NAMES.get(code.value, code.value)})", shape


def _form_of(names: Sequence[str], feeds: Mapping[str, Array]) -> Form:
    form: list[object] = [*names]
    for name, array in feeds.items():
        form += (name, array.dtype, array.shape)
    return tuple(form)


@contextmanager
def _options(library: OrtLibrary, config: SessionConfig) -> Iterator[c_void_p]:
    options = library.made("CreateSessionOptions")
    try:
        library.call("SetSessionLogSeverityLevel", options, _SILENT)
        # Both explicit: left at 0 the runtime counts the host's cores and pins threads to them.
        library.call("SetIntraOpNumThreads", options, config.threads)
        library.call("SetInterOpNumThreads", options, 1)
        library.call("SetSessionExecutionMode", options, _SEQUENTIAL)
        # The arena never shrinks: one large batch would stay for good, in each version. Without it
        # the same runs take the same time within noise, and malloc_trim gives back what they freed.
        # (A low mmap threshold would return it at once, but made convolutions up to 2.6 times
        # slower.)
        library.call("DisableCpuMemArena", options)
        # One plan is kept for each input shape that ever came, without bound.
        library.call("DisableMemPattern", options)
        level = _ALL_OPTIMISATIONS if config.is_optimised else 0
        library.call("SetSessionGraphOptimizationLevel", options, level)
        if config.written_to is not None:
            library.call("SetOptimizedModelFilePath", options, str(config.written_to).encode())
        entries = {"session.intra_op.allow_spinning": "0", **config.entries}
        for key, value in entries.items():
            library.call("AddSessionConfigEntry", options, key.encode(), value.encode())
        yield options
    finally:
        library.functions["ReleaseSessionOptions"](options)
