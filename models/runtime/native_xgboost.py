"""XGBoost's own prediction, through its C interface (``c_api.h``), from JSON or UBJSON."""

from __future__ import annotations

import ctypes
import json
import math
import re
from ctypes import POINTER, byref, c_char, c_char_p, c_float, c_uint64, c_void_p
from pathlib import Path
from typing import Final

import numpy as np

from models.errors import LoadFailed, RunFailed
from models.reading import read_file
from models.runtime.shared_library import shared_library
from models.servable import Array
from registry.manifest import JsonObject

DTYPE: Final = np.dtype(np.float32)
_PLACE: Final = re.compile(r"^\[[\d:]+\] \S+:\d+: ")


class XgboostEngine:
    """One booster. ``predict`` may be called from any thread."""

    def __init__(self, path: Path, runtime: JsonObject, features: int) -> None:
        data = read_file(path)
        # Nothing but JSON and UBJSON: the older binary form is not checked by its reader.
        if not data.startswith(b"{"):
            raise LoadFailed("its model file is neither XGBoost JSON nor UBJSON")
        missing = runtime.get("missing")
        config = {
            "type": 0, "training": False, "iteration_begin": 0, "iteration_end": 0,
            "strict_shape": False, "cache_id": 0,
            "missing": math.nan if missing is None else missing,
        }  # fmt: skip
        self._config = json.dumps(config).encode()
        self._library = xgboost_library()
        self._handle = c_void_p()
        self._load(self._library.XGBoosterCreate(None, c_uint64(0), byref(self._handle)))
        try:
            self._load(
                self._library.XGBoosterLoadModelFromBuffer(
                    self._handle, (c_char * len(data)).from_buffer(data), c_uint64(len(data))
                )
            )
            self._load(self._library.XGBoosterSetParam(self._handle, b"nthread", b"1"))
            own = c_uint64()
            self._load(self._library.XGBoosterGetNumFeature(self._handle, byref(own)))
            if own.value != features:
                raise LoadFailed(
                    f"the signature has {features} features, the XGBoost model {own.value}"
                )
        except LoadFailed:
            self.close()
            raise

    def predict(self, table: Array) -> Array:
        """Return ``(rows,)`` or ``(rows, k)`` float32 for ``(rows, features)`` float32."""
        shape = POINTER(c_uint64)()
        dimensions = c_uint64()
        result = POINTER(c_float)()
        code = self._library.XGBoosterPredictFromDense(
            self._handle, _array_interface(table), self._config, None,
            byref(shape), byref(dimensions), byref(result),
        )  # fmt: skip
        if code:
            raise RunFailed(f"XGBoost: {self._error()}")
        sizes = tuple(shape[i] for i in range(dimensions.value))
        # The result lies in a buffer of this thread, which the next call uses again.
        return np.ctypeslib.as_array(result, sizes).copy()

    def close(self) -> None:
        """Free the booster; a second call does nothing."""
        if self._handle.value:
            self._library.XGBoosterFree(self._handle)
            self._handle = c_void_p()

    def _load(self, code: int) -> None:
        if code:
            raise LoadFailed(f"XGBoost refuses the model: {self._error()}")

    def _error(self) -> str:
        message: bytes = self._library.XGBGetLastError() or b""
        lines = message.decode(errors="replace").strip().splitlines()
        return _PLACE.sub("", lines[0])[:400] if lines else "no reason given"


def xgboost_library() -> ctypes.CDLL:
    """Return the C library, or raise LoadFailed where it is not installed."""
    library = shared_library("xgboost", "libxgboost.so")
    library.XGBGetLastError.restype = c_char_p
    return library


def _array_interface(table: Array) -> bytes:
    # Numpy's array interface, version 3: what the library reads instead of a copy.
    rows, features = table.shape
    return b'{"data":[%d,true],"shape":[%d,%d],"typestr":"<f4","version":3,"strides":null}' % (
        table.ctypes.data,
        rows,
        features,
    )
