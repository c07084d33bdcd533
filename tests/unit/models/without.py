"""Run as a child: converts files while only some modules can be imported, and says what came out.

``python -m tests.unit.models.without ALLOWED,ALLOWED [RUNTIME=]FILE...`` prints
``{argument: refusal or ""}``.
"""

from __future__ import annotations

import importlib.machinery
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

OPTIONAL = frozenset({
    "catboost", "joblib", "keras", "lightgbm", "matplotlib", "onnxscript", "openvino", "optuna",
    "pandas", "plotly", "polars", "scipy", "skl2onnx", "sklearn", "tensorflow", "tf2onnx",
    "tokenizers", "torch", "transformers", "xgboost", "yaml",
})  # fmt: skip


class Without(importlib.machinery.PathFinder):
    """Finds everything but the optional modules that are not allowed."""

    blocked: frozenset[str] = frozenset()

    @classmethod
    def find_spec(cls, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in cls.blocked:
            return None
        return super().find_spec(fullname, path, target)


def main() -> int:
    Without.blocked = OPTIONAL - set(sys.argv[1].split(","))
    at = sys.meta_path.index(importlib.machinery.PathFinder)
    sys.meta_path[at] = Without
    from models.convert import ConvertOptions, convert
    from models.errors import ConversionRefused

    found = {}
    for name in sys.argv[2:]:
        runtime, _, file = name.rpartition("=")
        try:
            with tempfile.TemporaryDirectory() as folder:
                options = ConvertOptions(runtime=runtime or "auto", folder=Path(folder))
                convert("m", Path(file), options)
        except ConversionRefused as error:
            found[name] = str(error)
        else:
            found[name] = ""
    here = sorted(module for module in Without.blocked if module in sys.modules)
    print(json.dumps({"found": found, "imported": here}))  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
