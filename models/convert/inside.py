"""Files that a document names inside its own folder: never one that lies elsewhere."""

from __future__ import annotations

from pathlib import Path

from models.errors import ConversionRefused
from registry.ident import shown


def inside(folder: Path, name: object, field: str) -> Path:
    """Return what ``field`` names in ``folder``, or raise ConversionRefused.

    Refused are absolute paths, ``..`` and links, wherever on the way, that lead out of the folder:
    the real path is what counts, and the real path is what comes back.
    """
    if not isinstance(name, str) or not name or "\0" in name:
        raise ConversionRefused(f"{field} {shown(name)} is not the name of a file")
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ConversionRefused(f"{field} {shown(name)} leads out of the folder")
    try:
        real = (folder / name).resolve(strict=True)
    except FileNotFoundError:
        raise ConversionRefused(f"{field} {shown(name)}: there is no such file") from None
    except (OSError, RuntimeError):  # a loop of links, a name that is too long
        raise ConversionRefused(f"{field} {shown(name)} cannot be opened") from None
    if not real.is_relative_to(folder.resolve()):
        raise ConversionRefused(f"{field} {shown(name)} is a link that leads out of the folder")
    return real
