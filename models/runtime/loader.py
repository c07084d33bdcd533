"""The one place that knows which runtime computes a version: by the name in its manifest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from models.errors import LoadFailed
from models.servable import Loader, LoadSpec, Servable
from registry.ident import shown

RUNTIME_NAMES: Final = ("onnx", "native")


class RuntimeLoader:
    """Hands each version to the loader of its runtime, made at the first such version."""

    def __init__(self, threads: int) -> None:
        self._makers: dict[str, Callable[[], Loader]] = {
            "onnx": lambda: _onnx(threads), "native": _native,
        }  # fmt: skip
        self._loaders: dict[str, Loader] = {}

    def load(self, spec: LoadSpec) -> Servable:
        """Load and warm up a version, or raise LoadFailed saying what to do about it."""
        name = runtime_name(spec.manifest.runtime.get("name"))
        loader = self._loaders.get(name)
        if loader is None:
            loader = self._loaders.setdefault(name, self._makers[name]())
        return loader.load(spec)


def runtime_name(name: object) -> str:
    """Return the name of a runtime that is known here, or raise LoadFailed."""
    if not isinstance(name, str) or name not in RUNTIME_NAMES:
        raise LoadFailed(
            f"runtime {shown(name)} is not known here: use one of {', '.join(RUNTIME_NAMES)}"
        )
    return name


def _onnx(threads: int) -> Loader:
    from models.runtime.onnx import OnnxLoader

    return OnnxLoader(threads)


def _native() -> Loader:
    from models.runtime.native import NativeLoader

    return NativeLoader()
