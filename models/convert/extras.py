"""What to type where a library of an extra is missing."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final

from models.errors import ConversionRefused

# Module to extra.
_EXTRAS: Final = {
    "lightgbm": "lightgbm", "xgboost": "xgboost", "catboost": "catboost",
    "sklearn": "sklearn", "skl2onnx": "sklearn", "pandas": "sklearn", "joblib": "sklearn",
    "skops": "sklearn", "torch": "torch", "onnxscript": "torch", "tensorflow": "tensorflow",
    "keras": "tensorflow", "tf2onnx": "tensorflow", "tokenizers": "text", "openvino": "openvino",
}  # fmt: skip


class ModulesMissing(ConversionRefused):
    """A conversion needs modules that are not installed. ``modules``: which."""

    def __init__(self, modules: Sequence[str]) -> None:
        names = ", ".join(repr(module) for module in modules)
        word = "module" if len(modules) == 1 else "modules"
        verb = "is" if len(modules) == 1 else "are"
        super().__init__(f"the Python {word} {names} {verb} missing: {advice(modules[0])}")
        self.modules = tuple(modules)


def need(*modules: str) -> None:
    """Raise ModulesMissing, with the one command to type, unless all are installed.

    They must be of one extra.
    """
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if missing:
        raise ModulesMissing(missing)


def advice(module: str) -> str:
    """Return the command that brings a module."""
    root = module.partition(".")[0]
    if root in _EXTRAS:
        return f"type `pip install 'ramrack[{_EXTRAS[root]}]'`"
    return f"type `pip install {root}`, or push from the environment that saved the model"
