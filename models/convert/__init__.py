"""Converters: one file a model family, run on the pusher's side; here the way in.

Frameworks are imported only when a file needs them, so the base install imports this module.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from models.convert.detect import FORMATS, detect_format
from models.convert.sample import Sample, read_sample
from models.errors import ConversionRefused
from models.package import CHUNK_BYTES, Package
from registry.ident import check_model_name, shown
from registry.manifest import JsonObject

if TYPE_CHECKING:
    from models.convert.graph import Conversion

__all__ = ["FORMATS", "ConvertOptions", "convert", "detect_format"]

DEFAULT_TOLERANCE: Final = 1e-5
_MAX_TEXT_BYTES: Final = 2**31 - 1
# Names of what is read without running code: a pickle under one of them is nobody's wish.
_HARMLESS_SUFFIXES: Final = frozenset(
    {".csv", ".json", ".npy", ".npz", ".onnx", ".parquet", ".pb", ".txt"}
)
_SKLEARN: Final = ("sklearn", "imblearn")
_EXTRAS: Final = {
    "lightgbm": ("lightgbm", "lightgbm"),
    "sklearn": ("sklearn", "sklearn"),
    "skl2onnx": ("skl2onnx", "sklearn"),
    "pandas": ("pandas", "sklearn"),
}


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How to convert. ``tolerance``: largest allowed ``|difference| / max(1, |native|)``.

    ``format``: one of FORMATS; "auto" looks at the file. ``sample``: rows for the parity check.
    """

    format: str = "auto"
    sample: Path | None = None
    tolerance: float = DEFAULT_TOLERANCE
    meta: JsonObject = field(default_factory=dict)


def convert(
    name: str,
    path: Path,
    options: ConvertOptions | None = None,
    *,
    before_pickle: Callable[[], None] | None = None,
) -> Package:
    """Return what a push of this file sends, with the parity of a conversion proven and recorded.

    A pickle is opened, which runs code that it brings along: ``before_pickle`` is called just
    before that. Never call this in a server. Raises ConversionRefused; nothing is written anywhere.
    """
    from models.convert.onnx_file import About, package_onnx

    options = options or ConvertOptions()
    check_model_name(name)
    found = _format(path, options.format)
    if found == "onnx":
        about = About(source={"file": path.name}, meta=options.meta)
        return package_onnx(name, path, about)
    sample = read_sample(options.sample) if options.sample is not None else None
    if found == "lightgbm":
        conversion = _convert_text(path, sample, options.tolerance)
    else:
        _need("sklearn")
        if before_pickle is not None:
            before_pickle()
        model = _unpickle(path)
        conversion = _convert_object(path, model, options.format, sample, options.tolerance)
    about = About(
        signature=conversion.signature,
        parity=_record(conversion, sample),
        source={
            "framework": conversion.framework,
            "libraries": conversion.libraries,
            "file": path.name,
            "file_digest": _digest(path),
        },
        meta=options.meta,
    )
    return package_onnx(name, conversion.model, about)


def _format(path: Path, wanted: str) -> str:
    if wanted not in FORMATS:
        raise ConversionRefused(
            f"format {shown(wanted)} is not supported: use one of {', '.join(FORMATS)}"
        )
    found = detect_format(path)
    fits = {"onnx": ("onnx",), "lightgbm": ("lightgbm", "pickle"), "sklearn": ("pickle",)}
    if wanted != "auto" and found not in fits[wanted]:
        raise ConversionRefused(f"{shown(path.name)} is {found}, not {wanted}: use --format auto")
    if found == "pickle" and wanted == "auto" and path.suffix.lower() in _HARMLESS_SUFFIXES:
        raise ConversionRefused(
            f"{shown(path.name)} is a Python pickle although its name says otherwise; opening one "
            "runs code that it brings along: if you trust it, use --format sklearn or lightgbm"
        )
    return found


def _record(conversion: Conversion, sample: Sample | None) -> JsonObject:
    record = conversion.parity.to_json()
    record["precision"] = conversion.precision
    record["sample"] = sample.file if sample is not None else None
    record["libraries"] = conversion.libraries
    return record


def _convert_text(path: Path, sample: Sample | None, tolerance: float) -> Conversion:
    _need("lightgbm")
    from models.convert.lightgbm import convert_text

    if path.stat().st_size > _MAX_TEXT_BYTES:
        raise ConversionRefused(f"{shown(path.name)}: over {_MAX_TEXT_BYTES} bytes of model text")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConversionRefused(f"{shown(path.name)} is damaged: it is not UTF-8 text") from error
    return convert_text(text, sample, tolerance)


def _convert_object(
    path: Path, model: Any, wanted: str, sample: Sample | None, tolerance: float
) -> Conversion:
    module = type(model).__module__.partition(".")[0]
    kind = f"{type(model).__module__}.{type(model).__qualname__}"
    families = {"lightgbm": ("lightgbm",), "sklearn": _SKLEARN}
    others = {"lightgbm", *_SKLEARN} - set(families.get(wanted, ("lightgbm", *_SKLEARN)))
    if module in others:
        raise ConversionRefused(
            f"{shown(path.name)} holds a {shown(kind)}, which is not {wanted}: use --format auto"
        )
    if module == "lightgbm":
        _need("lightgbm")
        from models.convert.lightgbm import convert_object

        return convert_object(model, sample, tolerance)
    if module in _SKLEARN:
        _need("skl2onnx")
        _need("pandas")
        from models.convert.sklearn import convert_estimator

        return convert_estimator(model, sample, tolerance)
    raise ConversionRefused(
        f"{shown(path.name)} holds a {shown(kind)}: only LightGBM and scikit-learn models can be "
        "pushed from a pickle"
    )


def _unpickle(path: Path) -> Any:
    import joblib
    from sklearn.exceptions import InconsistentVersionWarning

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            # joblib reads plain pickles as well.
            model = joblib.load(io.BytesIO(path.read_bytes()))
        except ModuleNotFoundError as error:
            raise ConversionRefused(
                f"{shown(path.name)} needs the Python module {error.name!r}: "
                f"{_advice(str(error.name))}"
            ) from error
        # Unpickling runs the file's own code, which may raise anything at all.
        except Exception as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ConversionRefused(
                f"{shown(path.name)} cannot be unpickled, it may be damaged or truncated: {reason}"
            ) from error
    for warning in caught:
        if isinstance(warning.message, InconsistentVersionWarning):
            raise ConversionRefused(
                f"{shown(path.name)} was saved with scikit-learn "
                f"{warning.message.original_sklearn_version}, here is "
                f"{warning.message.current_sklearn_version}: answers may differ; use "
                "`--python EXE` with the interpreter of an environment that has that version, or "
                "save the model again"
            )
    return model


def _need(module: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ConversionRefused(f"the Python module {module!r} is missing: {_advice(module)}")


def _advice(module: str) -> str:
    root = module.partition(".")[0]
    if root in _EXTRAS:
        return f"type `pip install 'ramrack[{_EXTRAS[root][1]}]'`"
    return f"type `pip install {root}`, or push from the environment that saved the model"


def _digest(path: Path) -> str:
    hasher = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()
