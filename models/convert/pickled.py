"""Files of Python objects, pickles and skops: opened here, and told by the class of what is in."""

from __future__ import annotations

import importlib
import io
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.convert.choice import choose
from models.convert.detect import BOOSTERS
from models.convert.extras import advice, need
from models.errors import ConversionRefused
from registry.ident import shown

if TYPE_CHECKING:
    from models.convert import ConvertOptions
    from models.convert.choice import Candidate
    from models.convert.graph import Conversion
    from models.convert.sample import Sample

_NOT_THERE: Final = re.compile(r"Can't get attribute '(?P<name>[\w.]+)' on <module ")
_SKLEARN: Final = ("sklearn", "imblearn")


def convert_object(
    path: Path, model: Any, options: ConvertOptions, sample: Sample | None, tolerance: float
) -> Conversion:
    """Return what was made of the model that ``path`` held.

    Raises ConversionRefused where it is no model of these libraries, or not what was asked for.
    """
    module = type(model).__module__.partition(".")[0]
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    family = "sklearn" if module in _SKLEARN else module
    if family not in (*BOOSTERS, "sklearn"):
        raise ConversionRefused(
            f"{shown(path.name)} holds a {shown(kind)}: only LightGBM, XGBoost, CatBoost and "
            "scikit-learn models can be pushed from a file of Python objects"
        )
    if options.format not in ("auto", family):
        raise ConversionRefused(
            f"{shown(path.name)} holds a {shown(kind)}, which is not {options.format}: "
            "use --format auto"
        )
    if family != "sklearn":
        need(family)
        converter = importlib.import_module(f"models.convert.{family}")
        candidate: Candidate = converter.convert_object(model, sample)
        return choose(candidate, options.runtime, tolerance)
    if options.runtime == "native":
        raise ConversionRefused("--runtime native: scikit-learn has no format but pickle")
    need("skl2onnx", "pandas")
    from models.convert.sklearn import convert_estimator

    return convert_estimator(model, sample, tolerance)


def unpickled(path: Path) -> Any:
    """Open a pickle, which runs its code; raises ConversionRefused."""
    import joblib

    # joblib reads plain pickles as well.
    return _opened(path, joblib.load, "cannot be unpickled")


def unskopsed(path: Path) -> Any:
    """Open a skops file, which runs no code: of types that skops does not know it opens none.

    Raises ConversionRefused.
    """
    import skops.io

    try:
        unknown = skops.io.get_untrusted_types(data=path.read_bytes())
    except Exception as error:
        raise ConversionRefused(_damaged(path, "cannot be read by skops", error)) from error
    if unknown:
        raise ConversionRefused(
            f"{shown(path.name)} holds {shown(unknown)}, which skops does not know to be harmless: "
            "if you trust it, save it with joblib.dump and push that"
        )
    return _opened(path, lambda file: skops.io.loads(file.read()), "cannot be read by skops")


def _opened(path: Path, read: Callable[[io.BytesIO], Any], what: str) -> Any:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            model = read(io.BytesIO(path.read_bytes()))
        except ModuleNotFoundError as error:
            raise ConversionRefused(
                f"{shown(path.name)} needs the Python module {error.name!r}: "
                f"{advice(str(error.name))}"
            ) from error
        except AttributeError as error:
            if (missing := _NOT_THERE.match(str(error))) is None:
                raise ConversionRefused(_damaged(path, what, error)) from error
            raise ConversionRefused(
                f"{shown(path.name)} refers to {missing['name']!r}, which is not there: a pickle "
                "names functions and classes of your own and does not hold them; define them in a "
                "module that the push can import (PYTHONPATH), not in a notebook or script, or "
                "leave them out of the model"
            ) from error
        # Unpickling runs the file's own code, which may raise anything at all.
        except Exception as error:
            raise ConversionRefused(_damaged(path, what, error)) from error
    for warning in caught:
        # By name: scikit-learn is not needed for a pickle that holds none of it.
        if type(warning.message).__name__ == "InconsistentVersionWarning":
            versions: Any = warning.message
            raise ConversionRefused(
                f"{shown(path.name)} was saved with scikit-learn "
                f"{versions.original_sklearn_version}, here is "
                f"{versions.current_sklearn_version}: answers may differ; use "
                "`--python EXE` with the interpreter of an environment that has that version, or "
                "save the model again"
            )
    return model


def _damaged(path: Path, what: str, error: Exception) -> str:
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"{shown(path.name)} {what}, it may be damaged or truncated: {reason}"
