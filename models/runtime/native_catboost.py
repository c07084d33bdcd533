"""CatBoost's own prediction from its binary model; its wheel has no C library, so through Python.

Importing it costs a worker 36 MB of private memory, once, at the first such model.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.errors import InputRefused, LoadFailed, RunFailed
from models.runtime.shared_library import missing_advice
from models.servable import Array
from registry.manifest import JsonObject

DTYPE: Final = np.dtype(np.float32)
PREDICTION_TYPES: Final = ("RawFormulaVal", "Exponent", "Probability", "RMSEWithUncertainty")


class CatboostEngine:
    """One model. ``predict`` may be called from any thread."""

    def __init__(self, path: Path, runtime: JsonObject, features: int) -> None:
        with path.open("rb") as file:
            if file.read(4) != b"CBM1":
                raise LoadFailed("its model file is not a CatBoost binary model")
        catboost = catboost_module()
        self._kind = runtime.get("prediction_type")
        if self._kind not in PREDICTION_TYPES:
            known = ", ".join(PREDICTION_TYPES)
            raise LoadFailed(f"runtime.prediction_type must be one of {known}")
        self._errors: tuple[type[Exception], ...] = (catboost.CatBoostError, ValueError, TypeError)
        self._model: Any = catboost.CatBoost()
        try:
            # From the file: from memory, one that is cut off near its end is read past that end.
            self._model.load_model(str(path), format="cbm")
        except self._errors as error:
            raise LoadFailed(f"CatBoost refuses the model: {_text(error)}") from None
        own = len(self._model.feature_names_)
        if own != features:
            raise LoadFailed(f"the signature has {features} features, the CatBoost model {own}")

    def predict(self, table: Array) -> Array:
        """Return ``(rows,)`` or ``(rows, k)`` float64 for ``(rows, features)`` float32 or object.

        In an object table category and text columns are ``str``.
        """
        try:
            answer = self._model.predict(table, prediction_type=self._kind, thread_count=1)
        except self._errors as error:
            # Only values can be refused: the model itself passed its inspection.
            kind = InputRefused if table.dtype == object else RunFailed
            raise kind(f"CatBoost: {_text(error)}") from None
        return np.asarray(answer, dtype=np.float64)

    def close(self) -> None:
        """Free the model; a second call does nothing."""
        self._model = None


def catboost_module() -> Any:
    """Return the module, or raise LoadFailed where it is not installed."""
    if importlib.util.find_spec("catboost") is None:
        raise LoadFailed(missing_advice("catboost"))
    import catboost

    return catboost


def _text(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    text = lines[0] if lines else type(error).__name__
    # "catboost/libs/model/model.cpp:1169: " says where in its sources it stood.
    place, mark, rest = text.partition(": ")
    return (rest if mark and ".cpp" in place else text)[:400]
