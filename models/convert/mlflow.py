"""Folders that MLflow saved: which file in them is the model, and what else they say of it.

MLflow itself is not needed: its ``MLmodel`` is a YAML document that names the file of each flavour.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from models.convert.inside import inside
from models.errors import ConversionRefused
from registry.ident import shown
from registry.manifest import JsonObject

if TYPE_CHECKING:
    from models.convert import ConvertOptions
    from models.package import Package

DOCUMENT: Final = "MLmodel"
_MAX_DOCUMENT_BYTES: Final = 4 * 1024**2
# Kept with the version, under these names, so that it can be found again where it was trained.
_META: Final = ("run_id", "model_uuid", "model_id", "utc_time_created")
_ADVICE: Final = "or push the model file itself"


@dataclass(frozen=True, slots=True)
class Flavour:
    """A flavour that can be taken.

    ``fields``: the keys that name its file, the first that is there counts. ``release``: the key
    of the library's version. ``needs``: the module that opens it, its extra, and its distribution.
    """

    name: str
    fields: tuple[str, ...]
    release: str
    needs: tuple[str, str, str]
    files: tuple[str, ...] = ()


# In the order of preference where a folder has several.
FLAVOURS: Final = (
    Flavour("lightgbm", ("data",), "lgb_version", ("lightgbm", "lightgbm", "lightgbm")),
    Flavour("xgboost", ("data",), "xgb_version", ("xgboost", "xgboost", "xgboost-cpu")),
    Flavour("catboost", ("data",), "catboost_version", ("catboost", "catboost", "catboost")),
    Flavour("sklearn", ("pickled_model",), "sklearn_version",
            ("sklearn", "sklearn", "scikit-learn")),
    Flavour("onnx", ("data",), "onnx_version", ("onnx", "", "onnx"), ("model.onnx",)),
    Flavour("pytorch", ("model_data",), "pytorch_version", ("torch", "torch", "torch"),
            ("model.pt2", "model.ts", "model.pt", "model.pth")),
    Flavour("keras", ("data",), "keras_version", ("keras", "tensorflow", "keras"),
            ("model.keras", "model.h5", "model")),
    Flavour("tensorflow", ("saved_model_dir", "data"), "keras_version",
            ("tensorflow", "tensorflow", "tensorflow"),
            ("model.keras", "model.h5", "model", "tfmodel", "tf2model")),
)  # fmt: skip
_PICKLED: Final = ("sklearn",)


@dataclass(frozen=True, slots=True)
class MlflowModel:
    """What an MLflow folder holds. ``release``: of the library that saved it, "" if not known."""

    flavour: Flavour
    file: Path
    signature: object
    example: Path | None
    release: str
    meta: JsonObject


class Convert(Protocol):
    """``models.convert.convert``."""

    def __call__(
        self,
        name: str,
        path: Path,
        options: ConvertOptions | None = None,
        *,
        before_pickle: Callable[[], None] | None = None,
    ) -> Package:
        """Return what a push of the file sends."""
        ...  # fmt: skip


def convert_folder(
    name: str,
    folder: Path,
    options: ConvertOptions,
    convert: Convert,
    before_pickle: Callable[[], None] | None,
) -> Package:
    """Return what a push of the folder sends: its model file, held to what the folder says of it.

    Raises ConversionRefused, also where the signature names other columns than the model takes.
    """
    from models.convert.mlflow_signature import fitted

    wanted = options.format if options.format not in ("auto", "mlflow") else None
    found = read_mlflow(folder, wanted)
    check_release(found)
    inner = replace(
        options,
        format="auto",
        sample=options.sample or found.example,
        meta=found.meta | options.meta,
    )
    try:
        package = convert(name, found.file, inner, before_pickle=before_pickle)
    except ConversionRefused as error:
        if options.sample is None and found.example is not None and "sample " in str(error):
            raise ConversionRefused(
                f"{error}; it is the input_example of {shown(folder.name)}: use --sample FILE for "
                "other rows"
            ) from error
        raise
    signature, unused = fitted(package.manifest.signature, found.signature)
    about: JsonObject = {"flavour": found.flavour.name}
    if found.release:
        about["saved_with"] = found.release
    if unused:
        about["unused_columns"] = list(unused)
    source = package.manifest.source | {"mlflow": about}
    return replace(package, manifest=replace(package.manifest, signature=signature, source=source))


def read_mlflow(folder: Path, wanted: str | None = None) -> MlflowModel:
    """Return what the folder holds; ``wanted``: the flavour to take. Raises ConversionRefused."""
    document = _document(folder)
    flavours = document.get("flavors")
    if not isinstance(flavours, Mapping):
        raise ConversionRefused(f"{DOCUMENT}: flavors: expected an object, got {shown(flavours)}")
    flavour = _chosen(flavours, wanted)
    about = flavours[flavour.name]
    if not isinstance(about, Mapping):
        raise ConversionRefused(f"{DOCUMENT}: flavors.{flavour.name}: expected an object")
    release = about.get(flavour.release)
    meta: JsonObject = {
        key: str(document[key]) for key in _META if isinstance(document.get(key), str | int)
    }
    return MlflowModel(
        flavour=flavour,
        file=_file(folder, flavour, about),
        signature=document.get("signature"),
        example=_example(folder, document.get("saved_input_example_info")),
        release=str(release) if release is not None else _required(folder, flavour.needs[2]),
        meta=meta,
    )


def check_release(model: MlflowModel) -> None:
    """Refuse a pickle that another release of its library saved, and what no library here opens.

    Files in a library's own format are opened by later releases, and the proof is the judge.
    """
    flavour = model.flavour
    module, extra, distribution = flavour.needs
    if importlib.util.find_spec(module) is None:
        raise ConversionRefused(
            f"this is an MLflow folder of flavour {flavour.name}, and the Python module {module!r} "
            f"is missing: type `pip install 'ramrack[{extra}]'`"
        )
    if flavour.name not in _PICKLED or not model.release:
        return
    here = metadata.version(distribution)
    if here != model.release:
        raise ConversionRefused(
            f"flavors.{flavour.name}: {distribution} {model.release} saved the model, here is "
            f"{here}: answers may differ; use `--python EXE` with the interpreter of an "
            "environment that has that version, or save the model again"
        )


def _document(folder: Path) -> Mapping[str, Any]:
    if importlib.util.find_spec("yaml") is None:
        raise ConversionRefused(
            f"{shown(folder.name)} is an MLflow folder, and the Python module 'yaml' is missing: "
            "type `pip install 'ramrack[mlflow]'`"
        )
    import yaml

    path = inside(folder, DOCUMENT, "file")
    if not path.is_file() or path.stat().st_size > _MAX_DOCUMENT_BYTES:
        raise ConversionRefused(f"{DOCUMENT}: not a file of at most {_MAX_DOCUMENT_BYTES} bytes")
    try:
        document = yaml.safe_load(path.read_bytes())
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise ConversionRefused(f"{DOCUMENT} is not YAML: {reason}") from error
    if not isinstance(document, Mapping):
        raise ConversionRefused(f"{DOCUMENT}: expected an object, got {shown(document)}")
    return document


def _chosen(flavours: Mapping[Any, Any], wanted: str | None) -> Flavour:
    for flavour in FLAVOURS:
        if flavour.name in flavours and wanted in (None, flavour.name):
            return flavour
    have = ", ".join(shown(name) for name in flavours) or "none"
    if wanted is not None:
        raise ConversionRefused(f"{DOCUMENT}: flavors: there is no {shown(wanted)}, but {have}")
    if set(flavours) == {"python_function"}:
        about = flavours["python_function"]
        loader = about.get("loader_module") if isinstance(about, Mapping) else None
        raise ConversionRefused(
            f"{DOCUMENT}: the only flavour is python_function (loader {shown(loader)}), which is "
            f"code of its own, and the server runs none: save with the library's flavour, {_ADVICE}"
        )
    raise ConversionRefused(
        f"{DOCUMENT}: flavors: {have}; none of them can be served: save with one of "
        f"{', '.join(flavour.name for flavour in FLAVOURS)}, {_ADVICE}"
    )


def _file(folder: Path, flavour: Flavour, about: Mapping[Any, Any]) -> Path:
    field = next((key for key in flavour.fields if about.get(key) is not None), flavour.fields[0])
    where = f"{DOCUMENT}: flavors.{flavour.name}.{field}"
    path = inside(folder, about.get(field), where)
    if (path / DOCUMENT).exists():
        raise ConversionRefused(f"{where}: {shown(path.name)} is a folder of MLflow itself")
    if not path.is_dir() or not flavour.files or (path / "saved_model.pb").is_file():
        return path
    for name in flavour.files:
        if (path / name).exists():
            return inside(folder, str((path / name).relative_to(folder.resolve())), where)
    raise ConversionRefused(f"{where}: {shown(path.name)} holds none of {', '.join(flavour.files)}")


def _example(folder: Path, info: object) -> Path | None:
    """Return the rows that were saved as an example, where they are rows of a table."""
    if not isinstance(info, Mapping) or info.get("type") not in ("dataframe", "ndarray"):
        return None
    return inside(
        folder, info.get("artifact_path"), f"{DOCUMENT}: saved_input_example_info.artifact_path"
    )


def _required(folder: Path, distribution: str) -> str:
    """Return the release of a library that requirements.txt pins, "" where it does not."""
    try:
        path = inside(folder, "requirements.txt", "file")
        text = path.read_text(encoding="utf-8")[:_MAX_DOCUMENT_BYTES]
    except (ConversionRefused, OSError, UnicodeDecodeError):
        return ""
    names = {distribution, distribution.removesuffix("-cpu")}
    for line in text.splitlines():
        pin = re.match(r"\s*([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*==\s*([^\s;#,]+)", line)
        if pin and pin[1].lower().replace("_", "-") in names:
            return pin[2]
    return ""
