"""Buffers of earlier runs, kept with the runtime's values over them, so that a run is one call.

A run makes a value for each input and reads type, shape and place of each output: a dozen calls
through ctypes, which take as long as a small forest. For inputs of a form that came before, all of
it stands ready: the numbers are copied in, the graph is run, the results are copied out.

The runtime writes into an output that it is given only if the shape is right, and fails where it
depends on the numbers. Whoever runs a frame then runs the ordinary way and calls ``loosen``: from
then on frames keep inputs only, as they do where outputs are texts.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from ctypes import c_int64, c_void_p
from typing import Final

import numpy as np

from models.runtime.ort_library import OrtError, OrtLibrary, list_of
from models.runtime.ort_texts import KEPT_TEXT_BYTES, KeptTexts
from models.servable import Array

# A session holds no more than this, however many shapes come and however many run at once.
MOST_FRAMES: Final = 64
MOST_BYTES: Final = 1 << 20
# Above it a run takes so long that the calls are nothing, and copying is not.
MOST_FRAME_BYTES: Final = 256 << 10
# As the runtime's own memory: kernels may add up in another order where numbers lie otherwise.
_ALIGNMENT: Final = 64
# One that was not asked for in so many runs makes room for another.
_STALE_RUNS: Final = 1000
_UNWRITTEN: Final = 0xA5
DTYPES: Final = {
    code: np.dtype(name)
    for code, name in {
        1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64",
        9: "bool", 10: "float16", 11: "float64", 12: "uint32", 13: "uint64",
    }.items()
}  # fmt: skip
CODES: Final = {dtype: code for code, dtype in DTYPES.items()}
# What tells runs of one session apart: hashable.
Form = tuple[object, ...]
Named = Iterable[tuple[str, Array]]


def tensor_over(library: OrtLibrary, array: Array) -> int:
    """Return a value over the array's own memory, which must outlive it. Raises OrtError."""
    shape, made = list_of(c_int64, array.ndim)(*array.shape), c_void_p()
    status = library.tensor_over(
        library.memory, array.__array_interface__["data"][0], array.nbytes, shape, array.ndim,
        CODES[array.dtype], ctypes.byref(made),
    )  # fmt: skip
    if status:
        raise library.error(status)
    return made.value or 0


class Frame:
    """Inputs and outputs of one form. One run at a time may use it.

    ``outputs`` None: it keeps the inputs only, as ``values`` for an ordinary run.
    """

    def __init__(
        self, library: OrtLibrary, session: int, inputs: Named, outputs: Named | None
    ) -> None:
        self._library = library
        self._values: list[int] = []
        self.binding: int | None = None
        if outputs is not None:
            self.binding = library.made("CreateIoBinding", session).value
        self.inputs = [
            self._bound_texts(name, array)
            if array.dtype == object
            else self._bound("BindInput", name, array)
            for name, array in inputs
        ]
        self.values = list_of(c_void_p, len(self._values))(*self._values)
        kept = [self._bound("BindOutput", name, array) for name, array in outputs or ()]
        self._written = [array.reshape(-1).view(np.uint8) for array in kept]
        self.copies = [array.copy for array in kept]
        self.is_proven = False

    def _bound(self, function: str, name: str, like: Array) -> Array:
        array = _aligned(like)
        self._values.append(tensor_over(self._library, array))
        if self.binding is not None:
            self._library.call(function, self.binding, name.encode(), self._values[-1])
        return array

    def _bound_texts(self, name: str, like: Array) -> KeptTexts:
        kept = KeptTexts(self._library, like.shape)
        self._values.append(kept.value.value or 0)
        if self.binding is not None:
            self._library.call("BindInput", self.binding, name.encode(), kept.value)
        return kept

    def mark(self) -> bool:
        """Fill the outputs with what ``prove`` knows again; return False: not proven."""
        for memory in self._written:
            memory.fill(_UNWRITTEN)
        return False

    def prove(self) -> bool:
        """Tell whether the first run wrote each output here, and not elsewhere."""
        self.is_proven = all(
            not memory.size or bool((memory != _UNWRITTEN).any()) for memory in self._written
        )
        return self.is_proven

    def __del__(self) -> None:
        if hasattr(self, "binding"):
            if self.binding is not None:
                self._library.functions["ReleaseIoBinding"](self.binding)
            for value in self._values:
                self._library.release_value(value)


class _Pool:
    """Frames of one form that no run uses now, and when one was last asked for."""

    __slots__ = ("count", "idle", "size_bytes", "used")

    def __init__(self, used: int) -> None:
        self.idle: list[Frame] = []
        self.used = used
        self.count = self.size_bytes = 0


class Frames:
    """The frames of one session. Any thread may call; no two runs ever get the same frame."""

    def __init__(self, library: OrtLibrary) -> None:
        self._library = library
        self._pools: dict[Form, _Pool] = {}
        # Forms that came once: many never come again.
        self._seen: dict[Form, None] = {}
        self._turns = itertools.count()
        self._full_until = self._count = self._size_bytes = 0
        self._lock = threading.Lock()
        self.is_allowed = True
        self._has_outputs = True

    @property
    def count(self) -> int:
        """How many are kept."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """What the arrays of those that are kept take."""
        return self._size_bytes

    def idle(self, key: Form) -> list[Frame] | None:
        """Return the frames of a form that no run uses: take one off, and put it back after.

        The list is another one where they were given up meanwhile; who has this one ends them.
        """
        pool = self._pools.get(key)
        if pool is None:
            return None
        pool.used = next(self._turns)
        return pool.idle

    def learn(
        self,
        key: Form,
        session: int,
        names: Sequence[str],
        feeds: Mapping[str, Array],
        results: Sequence[Array],
    ) -> None:
        """Hear of an ordinary run, and keep a frame of its form if it is worth one."""
        outputs = None
        if self._has_outputs and all(array.dtype in CODES for array in results):
            outputs = zip(names, results, strict=True)
        size = sum(array.nbytes for array in results) if outputs is not None else 0
        for array in feeds.values():
            size += array.size * KEPT_TEXT_BYTES if array.dtype == object else array.nbytes
        if size > MOST_FRAME_BYTES:
            return
        turn = next(self._turns)
        if turn < self._full_until:
            return
        with self._lock:
            if not self.is_allowed:
                return
            if key not in self._pools and key not in self._seen:
                if len(self._seen) >= MOST_FRAMES:
                    del self._seen[next(iter(self._seen))]
                self._seen[key] = None
                return
            while self._count >= MOST_FRAMES or self._size_bytes + size > MOST_BYTES:
                if not self._put_out_oldest():
                    return
            self._seen.pop(key, None)
            try:
                frame = Frame(self._library, session, feeds.items(), outputs)
            except (OrtError, MemoryError):
                return  # the run itself went well
            pool = self._pools.setdefault(key, _Pool(turn))
            pool.idle.append(frame)
            pool.count += 1
            pool.size_bytes += size
            self._count += 1
            self._size_bytes += size

    def loosen(self) -> None:
        """Give all back, and keep none with outputs again."""
        with self._lock:
            self._has_outputs = False
            self._clear()

    def forbid(self) -> None:
        """Give all back, and never keep one again."""
        with self._lock:
            self.is_allowed = False
            self._clear()

    def _clear(self) -> None:
        self._seen.clear()
        self._pools.clear()
        self._count = self._size_bytes = 0

    def _put_out_oldest(self) -> bool:
        """Make room; False where all are in use: where more forms come than fit, some must stay."""
        key = min(self._pools, key=lambda key: self._pools[key].used)
        stale = self._pools[key].used + _STALE_RUNS
        if stale > next(self._turns):
            self._full_until = stale
            return False
        pool = self._pools.pop(key)
        self._count -= pool.count
        self._size_bytes -= pool.size_bytes
        return True


def _aligned(like: Array) -> Array:
    memory = np.empty(like.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.__array_interface__["data"][0] % _ALIGNMENT
    return memory[start : start + like.nbytes].view(like.dtype).reshape(like.shape)
