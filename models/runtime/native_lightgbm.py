"""LightGBM's own prediction, through its C interface (``c_api.h``), from its text model."""

from __future__ import annotations

import ctypes
from ctypes import POINTER, byref, c_char, c_char_p, c_double, c_int, c_int64, c_void_p
from pathlib import Path
from typing import Final

import numpy as np

from models.errors import LoadFailed, RunFailed
from models.reading import read_file
from models.runtime.shared_library import shared_library
from models.servable import Array
from registry.manifest import JsonObject

DTYPE: Final = np.dtype(np.float64)
_FLOAT64: Final = 1  # C_API_DTYPE_FLOAT64
_NORMAL: Final = 0  # C_API_PREDICT_NORMAL: after the link function
_ALL: Final = -1
_ROW_MAJOR: Final = 1
# verbosity -1: only errors, which come back as such.
_PARAMETERS: Final = b"num_threads=1 verbosity=-1"
_HEADS: Final = (b"tree\n", b"tree\r\n")


class LightgbmEngine:
    """One booster. ``predict`` may be called from any thread."""

    def __init__(self, path: Path, runtime: JsonObject, features: int) -> None:
        del runtime
        data = read_file(path)
        if not data.startswith(_HEADS):
            raise LoadFailed("its model file is not a LightGBM text model")
        self._library = lightgbm_library()
        self._handle = c_void_p()
        self._fast = c_void_p()
        iterations = c_int()
        self._load(
            self._library.LGBM_BoosterLoadModelFromString(
                # A bytearray ends with a zero byte that is not counted, as bytes do.
                (c_char * len(data)).from_buffer(data),
                byref(iterations),
                byref(self._handle),
            )
        )
        try:
            self._width = self._count(self._library.LGBM_BoosterGetNumClasses)
            own = self._count(self._library.LGBM_BoosterGetNumFeature)
            if own != features:
                raise LoadFailed(f"the signature has {features} features, the LightGBM model {own}")
            self._load(
                self._library.LGBM_BoosterPredictForMatSingleRowFastInit(
                    self._handle, _NORMAL, 0, _ALL, _FLOAT64, features, c_char_p(_PARAMETERS),
                    byref(self._fast),
                )
            )  # fmt: skip
        except LoadFailed:
            self.close()
            raise

    def predict(self, table: Array) -> Array:
        """Return ``(rows,)`` or ``(rows, classes)`` float64 for ``(rows, features)`` float64."""
        rows = len(table)
        answer = np.empty((rows, self._width), dtype=np.float64)
        length = c_int64()
        result = answer.ctypes.data_as(POINTER(c_double))
        if rows == 1:
            code = self._library.LGBM_BoosterPredictForMatSingleRowFast(
                self._fast, c_void_p(table.ctypes.data), byref(length), result
            )
        else:
            code = self._library.LGBM_BoosterPredictForMat(
                self._handle, c_void_p(table.ctypes.data), _FLOAT64, rows, table.shape[1],
                _ROW_MAJOR, _NORMAL, 0, _ALL, c_char_p(_PARAMETERS), byref(length), result,
            )  # fmt: skip
        if code:
            raise RunFailed(f"LightGBM: {self._error()}")
        return answer[:, 0] if self._width == 1 else answer

    def close(self) -> None:
        """Free the booster; a second call does nothing."""
        if self._fast.value:
            self._library.LGBM_FastConfigFree(self._fast)
            self._fast = c_void_p()
        if self._handle.value:
            self._library.LGBM_BoosterFree(self._handle)
            self._handle = c_void_p()

    def _count(self, getter: ctypes._NamedFuncPointer) -> int:
        count = c_int()
        self._load(getter(self._handle, byref(count)))
        return count.value

    def _load(self, code: int) -> None:
        if code:
            raise LoadFailed(f"LightGBM refuses the model: {self._error()}")

    def _error(self) -> str:
        return _text(self._library.LGBM_GetLastError())


def lightgbm_library() -> ctypes.CDLL:
    """Return the C library, or raise LoadFailed where it is not installed."""
    library = shared_library("lightgbm", "lib_lightgbm.so")
    library.LGBM_GetLastError.restype = c_char_p
    return library


def _text(message: bytes | None) -> str:
    lines = (message or b"").decode(errors="replace").splitlines()
    return lines[0][:400] if lines else "no reason given"
