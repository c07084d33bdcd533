"""What a zip archive holds: PyTorch, Keras and skops write models as such, by any name."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Final, Literal, TypeAlias

from models.errors import ConversionRefused
from registry.ident import shown

ArchiveFormat: TypeAlias = Literal["torchscript", "pt2", "keras", "skops"]
# The directory of an archive is read whole, which takes some hundred bytes a member.
_MAX_MEMBERS: Final = 100_000
_SCHEMA: Final = frozenset({"schema.json"})
EXPORT_ADVICE: Final = (
    "save the model as an exported program, on the machine that has its code: "
    "torch.export.save(torch.export.export(model.eval(), (example,), "
    'dynamic_shapes={"x": {0: torch.export.Dim("rows")}}), "model.pt2")'
)


def archive_format(path: Path) -> ArchiveFormat:
    """Return what a zip file is by the names of its members; nothing of it is unpacked.

    Raises ConversionRefused saying what it is instead, or that it is damaged.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
            begin = min((entry.header_offset for entry in archive.infolist()), default=0)
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError) as error:
        raise ConversionRefused(
            f"{shown(path.name)} is a zip archive that is damaged or truncated: {error}"
        ) from error
    if begin:  # archives lie within archives here: the directory found is that of a member
        raise ConversionRefused(
            f"{shown(path.name)} is a zip archive that is damaged or truncated: its end is missing"
        )
    if len(names) > _MAX_MEMBERS:
        raise ConversionRefused(
            f"{shown(path.name)}: {len(names)} members in the archive, at most {_MAX_MEMBERS}"
        )
    found = _kind(path, names)
    if found is None:
        raise ConversionRefused(
            f"{shown(path.name)} is a zip archive, but not a PyTorch, Keras or skops model"
        )
    return found


def _kind(path: Path, names: list[str]) -> ArchiveFormat | None:
    every = set(names)
    if {"config.json", "metadata.json"} <= every:
        return "keras"
    if "schema.json" in every and all(name.endswith((".npy", ".npz")) for name in every - _SCHEMA):
        return "skops"
    # PyTorch puts all members beneath one folder; older exported programs have none.
    inner = {name.partition("/")[2] for name in names} | every
    if any(name.startswith("data/aotinductor/") for name in inner):
        raise ConversionRefused(
            f"{shown(path.name)} is a PyTorch model compiled for one kind of machine, which cannot "
            f"be served: {EXPORT_ADVICE}"
        )
    if any(name.startswith("models/") and name.endswith(".json") for name in inner) or (
        "serialized_exported_program.json" in inner
    ):
        return "pt2"
    if "constants.pkl" in inner and any(name.startswith("code/") for name in inner):
        return "torchscript"
    if "data.pkl" in inner:
        raise ConversionRefused(
            f"{shown(path.name)} is what torch.save writes: weights, or a pickled object, without "
            f"the program that computes with them: {EXPORT_ADVICE}"
        )
    if every and all(name.endswith(".npy") for name in every):
        raise ConversionRefused(f"{shown(path.name)} is a file of NumPy arrays, not a model")
    return None
