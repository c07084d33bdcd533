"""What kind of model a file holds: found by looking at its bytes, not at its name alone."""

from __future__ import annotations

import codecs
import zlib
from pathlib import Path
from typing import Final, Literal, TypeAlias

from models.convert.archive import ArchiveFormat, archive_format
from models.convert.text_folder import is_text_folder
from models.errors import ConversionRefused
from registry.ident import shown

Format: TypeAlias = (
    Literal["onnx", "lightgbm", "xgboost", "catboost", "pickle", "savedmodel", "text", "mlflow"]
    | ArchiveFormat
)
FORMATS: Final = (
    "auto", "onnx", "lightgbm", "xgboost", "catboost", "sklearn", "torch", "keras", "text",
    "mlflow",
)  # fmt: skip
BOOSTERS: Final = ("lightgbm", "xgboost", "catboost")
# What is found in files of each library of networks.
NETWORKS: Final = {"torch": ("torchscript", "pt2"), "keras": ("keras", "savedmodel")}
# Opening these runs code that they bring along.
RUN_CODE: Final = frozenset({"pickle", "torchscript", "pt2", "savedmodel"})

# What a refusal says can be pushed instead.
PUSHABLE: Final = (
    "push ONNX, a LightGBM text model, XGBoost JSON or UBJSON, a CatBoost .cbm, a PyTorch .pt2 or "
    "TorchScript file, a Keras model, a TensorFlow SavedModel, a folder with a tokenizer and an "
    "encoder, a pickle, joblib or skops file of a model of these libraries or scikit-learn, or an "
    "MLflow folder of one"
)
_HEAD_BYTES: Final = 4096
_TEXT_CONTROLS: Final = frozenset("\t\n\r\f")
# Text that stands where a model should be; its reader says what went wrong.
_FAILED_DOWNLOADS: Final = (b"version https://git-lfs", b"<")
_LIGHTGBM_HEAD: Final = (b"tree\n", b"tree\r\n")
_HDF5_HEAD: Final = b"\x89HDF\r\n\x1a\n"
_NOT_YET_SUFFIXES: Final = {
    ".safetensors": "a file of weights without a model",
    ".gguf": "a GGUF model",
}
# What compresses a joblib file: its first bytes, and how the start is unpacked where that is easy.
_COMPRESSED: Final = (b"\x1f\x8b", b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda",
                      b"BZh", b"\xfd7zXZ", b"\x5d\x00\x00", b"\x04\x22\x4d\x18")  # fmt: skip


def detect_format(path: Path) -> Format:
    """Return the format of a model file, or raise ConversionRefused saying what it is instead."""
    if (path / "MLmodel").is_file():
        return "mlflow"
    if path.is_dir():
        return "text" if is_text_folder(path) else _directory(path)
    if not path.is_file():
        raise ConversionRefused(f"{shown(path.name)}: there is no such file")
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if not head:
        raise ConversionRefused(f"{shown(path.name)} is empty")
    if head.startswith(_LIGHTGBM_HEAD):
        return "lightgbm"
    if head.startswith(b"CBM1"):
        return "catboost"
    if is_pickle_head(head):
        return "pickle"
    if head.startswith(b"PK\x03\x04"):
        return archive_format(path)
    if head.startswith(_HDF5_HEAD):
        return "keras"
    if head.lstrip().startswith(b"{"):
        # XGBoost writes JSON, or UBJSON, which starts with the same brace.
        if b"learner" in head:
            return "xgboost"
        raise ConversionRefused(_not_supported(path, "a JSON document"))
    if path.suffix.lower() in _NOT_YET_SUFFIXES:
        raise ConversionRefused(_not_supported(path, _NOT_YET_SUFFIXES[path.suffix.lower()]))
    if _is_text(head) and not head.startswith(_FAILED_DOWNLOADS):
        kind = "a CSV table" if path.suffix.lower() == ".csv" else "a text file"
        raise ConversionRefused(f"{shown(path.name)} is {kind}, not a model: {PUSHABLE}")
    # Protobuf has no mark of its own; what is not ONNX is refused by its reader, with the reason.
    return "onnx"


def is_pickle_head(head: bytes) -> bool:
    """Return whether bytes start a pickle (of any protocol), plain or as joblib compresses it."""
    if _is_plain_pickle(head):
        return True
    if not head.startswith(_COMPRESSED):
        return False
    if head.startswith((b"\x1f\x8b", b"\x78")):
        try:
            start = zlib.decompressobj(wbits=47).decompress(head, 64)
        except zlib.error:
            return False
        return _is_plain_pickle(start)
    return True


def _is_plain_pickle(head: bytes) -> bool:
    # From protocol 2 on: PROTO, its number, then an opcode.
    if head.startswith((b"ccopy_reg\n", b"csklearn.", b"clightgbm.")):  # protocols 0 and 1
        return True
    return len(head) >= 3 and head[0] == 0x80 and 2 <= head[1] <= 5


def _not_supported(path: Path, kind: str) -> str:
    return f"{shown(path.name)} is {kind}, which is not supported yet: {PUSHABLE}"


def _is_text(head: bytes) -> bool:
    """Say whether the start of a file is UTF-8 text. ONNX is not: its first byte is a control."""
    try:
        # A character that the end of the head cuts in two is no reason against it.
        text = codecs.getincrementaldecoder("utf-8")().decode(head)
    except UnicodeDecodeError:
        return False
    return all(character >= " " or character in _TEXT_CONTROLS for character in text)


def _directory(path: Path) -> Format:
    if (path / "saved_model.pb").is_file():
        return "savedmodel"
    raise ConversionRefused(f"{shown(path.name)} is a folder without a model: {PUSHABLE}")
