"""Converters: one file a model family, run on the pusher's side; here the way in.

Frameworks are imported only when a file needs them, so the base install imports this module.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from models.convert.bounded import DEFAULT_TIMEOUT_S
from models.convert.detect import BOOSTERS, FORMATS, NETWORKS, RUN_CODE, detect_format
from models.convert.extras import need
from models.convert.sample import Sample, read_sample
from models.errors import ConversionRefused
from models.package import CHUNK_BYTES, Package
from registry.ident import check_model_name, shown
from registry.manifest import JsonObject

if TYPE_CHECKING:
    import onnx

    from models.convert.choice import Candidate
    from models.convert.graph import Conversion
    from models.convert.loss import Request
    from models.convert.onnx_file import About

__all__ = ["FORMATS", "ConvertOptions", "convert", "detect_format"]

DEFAULT_TOLERANCE: Final = 1e-5
_MAX_TEXT_BYTES: Final = 2**31 - 1
# Names of what is read without running code: a pickle under one of them is nobody's wish.
_HARMLESS_SUFFIXES: Final = frozenset(
    {".csv", ".json", ".npy", ".npz", ".onnx", ".parquet", ".pb", ".txt"}
)
_FOUND_IN_NETWORKS: Final = frozenset(kind for kinds in NETWORKS.values() for kind in kinds)


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """How to convert.

    ``format``: one of FORMATS; "auto" looks at the file. ``sample``: rows for the parity check.
    ``runtime``: "onnx" or "native", or "auto" for the first of them that answers as the library;
    "openvino" for text models.
    ``tolerance``: largest allowed ``|difference| / max(1, |native|)``; None is DEFAULT_TOLERANCE,
    and with ``quantize`` what that mode may lose. ``quantize``: a mode of models.convert.quantize,
    which leaves no runtime but "onnx". ``folder``: smaller weights and the graphs of networks are
    written into it; it must stay until they have been sent. ``is_code_trusted``: whether Lambda
    layers in a file of Keras, which are Python code, may be run. ``is_apart``: a file that
    a training library opens is opened in a process of its own, for it may crash the library, and a
    graph is made smaller there. ``timeout_s``: how long such a process may take, and that of a
    network, before it is ended.
    """

    format: str = "auto"
    sample: Path | None = None
    tolerance: float | None = None
    meta: JsonObject = field(default_factory=dict)
    quantize: str | None = None
    folder: Path | None = None
    runtime: str = "auto"
    is_code_trusted: bool = False
    is_apart: bool = False
    timeout_s: float = DEFAULT_TIMEOUT_S


def convert(
    name: str,
    path: Path,
    options: ConvertOptions | None = None,
    *,
    before_pickle: Callable[[], None] | None = None,
) -> Package:
    """Return what a push of this file sends, with the parity of a conversion proven and recorded.

    A pickle and most networks are opened by running code that they bring along: ``before_pickle``
    is called just before that. Never call this in a server. Raises ConversionRefused. Nothing is
    written anywhere but into ``options.folder``.
    """
    import onnx

    from models.convert.onnx_file import About

    options = options or ConvertOptions()
    check_model_name(name)
    found = _format(path, options.format)
    if found == "mlflow":
        from models.convert.mlflow import convert_folder

        return convert_folder(name, path, options, convert, before_pickle)
    is_opened = found in (*BOOSTERS, "pickle", "skops")
    # Smaller weights are measured by running the graph, which may hold a loop without an end.
    is_run = options.quantize is not None and found not in _FOUND_IN_NETWORKS
    if options.is_apart and (is_opened or is_run):
        from models.convert.elsewhere import convert_apart

        if before_pickle is not None and found in RUN_CODE:
            before_pickle()
        return convert_apart(name, path, options)
    request = _smaller(options)
    is_compared = found != "onnx" or request is not None
    is_openvino = options.runtime == "openvino"
    sample = read_sample(options.sample) if options.sample is not None and is_compared else None
    if is_openvino and (found != "text" or request is not None):
        raise ConversionRefused("--runtime openvino computes text models, in weights of full size")
    if found == "text":
        from models.convert.text_push import convert_text

        return convert_text(name, path, options, request, sample)
    if found == "onnx":
        if options.runtime == "native":
            raise ConversionRefused(
                f"{shown(path.name)}: an ONNX file has no runtime but onnx and openvino"
            )
        about = About(source={"file": path.name}, meta=options.meta)
        return _package(name, path, about, request, sample)
    tolerance = options.tolerance
    if tolerance is None or request is not None:
        tolerance = DEFAULT_TOLERANCE
    if found in _FOUND_IN_NETWORKS:
        graph, about = _convert_network(path, found, options, tolerance, before_pickle)
        return _package(name, graph, about, request, sample)
    if request is not None:  # smaller weights are weights of a graph
        options = replace(options, runtime="onnx")
    if found in ("pickle", "skops"):
        from models.convert.pickled import convert_object, unpickled, unskopsed

        need("joblib" if found == "pickle" else "skops")
        if before_pickle is not None and found in RUN_CODE:
            before_pickle()
        model = unpickled(path) if found == "pickle" else unskopsed(path)
        conversion = convert_object(path, model, options, sample, tolerance)
    else:
        from models.convert.choice import choose

        need(found)
        conversion = choose(_read_file(path, found, sample), options.runtime, tolerance)
    source: JsonObject = {
        "framework": conversion.framework,
        "libraries": conversion.libraries,
        "file": path.name,
        "file_digest": _digest(path),
    }
    parity = _record(conversion, sample)
    if not isinstance(conversion.model, onnx.ModelProto):
        from models.convert.choice import package_native

        return package_native(name, conversion.model, parity, source, options.meta)
    about = About(signature=conversion.signature, parity=parity, source=source, meta=options.meta)
    if conversion.counted is not None:
        from models.convert.terms import package_counted
        from models.convert.variants import NOT_SMALLER

        if request is not None:
            raise ConversionRefused(f"--quantize {request.mode}: {NOT_SMALLER}")
        return package_counted(name, conversion.model, conversion.counted, about)
    return _package(name, conversion.model, about, request, sample)


def _convert_network(
    path: Path,
    found: str,
    options: ConvertOptions,
    tolerance: float,
    before_pickle: Callable[[], None] | None,
) -> tuple[Path, About]:
    from models.convert.networks import NEEDED, Order, convert_network, library_of
    from models.convert.onnx_file import About

    if options.runtime == "native":
        raise ConversionRefused(f"--runtime native: {library_of(found)} is not served, graphs are")
    if options.folder is None:
        raise ConversionRefused(f"{shown(path.name)}: there is no folder to write the graph into")
    need(*NEEDED[library_of(found)])
    if before_pickle is not None and (found in RUN_CODE or options.is_code_trusted):
        before_pickle()
    order = Order(
        path, found, options.sample, options.folder, options.is_code_trusted, options.timeout_s
    )
    network = convert_network(order, tolerance)
    source: JsonObject = {
        "framework": network.framework,
        "libraries": network.libraries,
        "file": path.name,
        "file_digest": _digest(path),
    }
    about = About(network.signature, network.parity, source, options.meta)
    return network.graph, about


def _smaller(options: ConvertOptions) -> Request | None:
    if options.quantize is None:
        return None
    from models.convert.loss import Request
    from models.convert.quantize import MODES

    mode = next((each for each in MODES if each == options.quantize), None)
    if mode is None:
        raise ConversionRefused(
            f"quantize {shown(options.quantize)}: use one of {', '.join(MODES)}"
        )
    if options.runtime == "native":
        raise ConversionRefused(f"quantize {mode}: a native model has no graph to make smaller")
    if options.folder is None:
        raise ConversionRefused(f"quantize {mode}: there is no folder to write the weights into")
    return Request(mode, options.folder, options.tolerance)


def _package(
    name: str,
    model: Path | onnx.ModelProto,
    about: About,
    request: Request | None,
    sample: Sample | None,
) -> Package:
    from models.convert.onnx_file import package_onnx

    if request is None:
        return package_onnx(name, model, about)
    from models.convert.loss import package_smaller

    if not isinstance(model, Path):
        converted = request.folder / "converted.onnx"
        converted.write_bytes(model.SerializeToString(deterministic=True))
        model = converted
    return package_smaller(name, model, request, sample, about)


def _read_file(path: Path, found: str, sample: Sample | None) -> Candidate:
    """Return what a library's own model file can be served as."""
    if found == "lightgbm":
        return _read_text(path, sample)
    if found == "catboost":
        from models.convert.catboost import convert_file as convert_catboost

        return convert_catboost(path, sample)
    from models.convert.xgboost import convert_file as convert_xgboost

    return convert_xgboost(path.read_bytes(), sample)


def _format(path: Path, wanted: str) -> str:
    if wanted not in FORMATS:
        raise ConversionRefused(
            f"format {shown(wanted)} is not supported: use one of {', '.join(FORMATS)}"
        )
    found = detect_format(path)
    if found == "mlflow":  # any other word names the flavour to take
        return found
    fits = {
        "onnx": ("onnx",), "sklearn": ("pickle", "skops"), "text": ("text",), "mlflow": ("mlflow",),
    } | NETWORKS | {
        family: (family, "pickle") for family in BOOSTERS
    }  # fmt: skip
    if wanted != "auto" and found not in fits[wanted]:
        raise ConversionRefused(f"{shown(path.name)} is {found}, not {wanted}: use --format auto")
    if found in RUN_CODE and wanted == "auto" and path.suffix.lower() in _HARMLESS_SUFFIXES:
        kind = "a Python pickle" if found == "pickle" else f"a {found} model"
        raise ConversionRefused(
            f"{shown(path.name)} is {kind} although its name says otherwise; opening one "
            "runs code that it brings along: if you trust it, use --format with the library's name"
        )
    return found


def _record(conversion: Conversion, sample: Sample | None) -> JsonObject:
    record = conversion.parity.to_json()
    record["precision"] = conversion.precision
    record["sample"] = sample.file if sample is not None else None
    record.update(conversion.why_native)
    record["libraries"] = conversion.libraries
    return record


def _read_text(path: Path, sample: Sample | None) -> Candidate:
    from models.convert.lightgbm import convert_text

    if path.stat().st_size > _MAX_TEXT_BYTES:
        raise ConversionRefused(f"{shown(path.name)}: over {_MAX_TEXT_BYTES} bytes of model text")
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConversionRefused(f"{shown(path.name)} is damaged: it is not UTF-8 text") from error
    return convert_text(text, sample)


def _digest(path: Path) -> str:
    """Return the digest of a file, or of the names and digests of all files of a folder."""
    hasher = hashlib.sha256()
    if path.is_dir():
        for inner in sorted(path.rglob("*")):
            if inner.is_file():
                hasher.update(f"{inner.relative_to(path)}\0{_digest(inner)}\n".encode())
        return "sha256:" + hasher.hexdigest()
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            hasher.update(chunk)
    return "sha256:" + hasher.hexdigest()
