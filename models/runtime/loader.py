"""The one place that knows which runtime computes a version: by the name in its manifest."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from models.errors import LoadFailed
from models.servable import Loader, LoadSpec, Servable
from registry.ident import shown

RUNTIME_NAMES: Final = ("onnx", "native", "text", "terms", "openvino")
# A request whose sizes do not fit together leaves OpenVINO (2026.4) in a state in which later
# answers are wrong. Only what is made of texts has sizes that always fit.
OPENVINO_ADVICE: Final = "OpenVINO computes the encoders of text models only: use the runtime onnx"


class RuntimeLoader:
    """Hands each version to the loader of its runtime, made at the first such version."""

    def __init__(self, threads: int) -> None:
        self._makers: dict[str, Callable[[], Loader]] = {
            "onnx": lambda: _onnx(threads), "native": _native,
            "text": lambda: _text(self.loader_of), "terms": lambda: _terms(self.loader_of),
            "openvino": lambda: _openvino(threads),
        }  # fmt: skip
        self._loaders: dict[str, Loader] = {}

    def load(self, spec: LoadSpec) -> Servable:
        """Load and warm up a version, or raise LoadFailed saying what to do about it."""
        name = runtime_name(spec.manifest.runtime.get("name"))
        if name == "openvino":
            raise LoadFailed(OPENVINO_ADVICE)
        return self.loader_of(name).load(spec)

    def loader_of(self, runtime: object) -> Loader:
        """Return the loader of a runtime, or raise LoadFailed where it is not known here."""
        name = runtime_name(runtime)
        loader = self._loaders.get(name)
        if loader is None:
            loader = self._loaders.setdefault(name, self._makers[name]())
        return loader


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


def _text(loader_of: Callable[[object], Loader]) -> Loader:
    from models.runtime.text import TextLoader

    return TextLoader(loader_of)


def _terms(loader_of: Callable[[object], Loader]) -> Loader:
    from models.runtime.terms import TermsLoader

    return TermsLoader(loader_of)


def _openvino(threads: int) -> Loader:
    from models.runtime.openvino import OpenvinoLoader

    return OpenvinoLoader(threads)
