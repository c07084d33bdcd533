"""Converting with another Python, whose libraries are those that saved the model.

Only this project's own code is lent to it, through a folder of links; numpy, onnx, onnxruntime and
the training libraries are the other environment's. Its interpreter runs ``elsewhere_child``.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from models.convert import ConvertOptions
from models.convert.detect import RUN_CODE, detect_format
from models.errors import ConversionRefused
from models.package import BytesObject, FileSlice, ObjectSource, Package
from registry.ident import digest_hex, shown
from registry.manifest import parse_manifest

_PACKAGES: Final = ("models", "registry")
_ROOT: Final = Path(__file__).resolve().parents[2]
_LEAST: Final = (3, 11)
_PROBE_TIMEOUT_S: Final = 60.0
_SAID_CHARACTERS: Final = 400
# Without skl2onnx and pandas a LightGBM model still converts; conversion itself asks for those.
_NEEDED: Final = ("numpy", "onnx", "onnxruntime")
_PROBE: Final = (
    "import importlib.util, json, sys; "
    "print(json.dumps([list(sys.version_info[:2]), "
    "[m for m in sys.argv[1:] if importlib.util.find_spec(m) is None]]))"
)


def convert_elsewhere(
    python: Path,
    name: str,
    path: Path,
    options: ConvertOptions,
    *,
    before_pickle: Callable[[], None] | None = None,
) -> Package:
    """Return what ``convert`` returns, computed by the interpreter ``python``.

    Raises ConversionRefused, also where that environment lacks something, naming it.
    """
    _check(python)
    if before_pickle is not None and detect_format(path) in RUN_CODE | {"mlflow"}:
        before_pickle()
    with tempfile.TemporaryDirectory(prefix="ramrack-convert-") as text:
        folder = Path(text)
        (folder / "code").mkdir()
        (folder / "objects").mkdir()
        for package in _PACKAGES:
            (folder / "code" / package).symlink_to(_ROOT / package)
        request = {
            "name": name,
            "path": str(path.resolve()),
            "format": options.format,
            "sample": str(options.sample.resolve()) if options.sample is not None else None,
            "tolerance": options.tolerance,
            "runtime": options.runtime,
            "quantize": options.quantize,
            "folder": str(options.folder.resolve()) if options.folder is not None else None,
            "meta": options.meta,
            "is_code_trusted": options.is_code_trusted,
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        done = _run(
            [str(python), "-m", "models.convert.elsewhere_child", str(folder)], folder / "code"
        )
        return _package(python, folder, done, options.folder)


def _check(python: Path) -> None:
    done = _run([str(python), "-c", _PROBE, *_NEEDED], None, timeout_s=_PROBE_TIMEOUT_S)
    try:
        version, missing = json.loads(done.stdout)
        version = tuple(version)
    except (ValueError, TypeError):
        raise ConversionRefused(
            f"--python {shown(str(python))} is no Python interpreter: {_said(done)}"
        ) from None
    if version < _LEAST:
        raise ConversionRefused(
            f"--python {shown(str(python))} is Python {version[0]}.{version[1]}: at least "
            f"{_LEAST[0]}.{_LEAST[1]} is needed"
        )
    if missing:
        raise _lacking(python, missing)


def _lacking(python: Path, modules: Sequence[str]) -> ConversionRefused:
    return ConversionRefused(
        f"--python {shown(str(python))} lacks {', '.join(modules)}: type "
        f"`{python} -m pip install {' '.join(modules)}`"
    )


def _run(
    command: list[str], code: Path | None, timeout_s: float | None = None
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    if code is not None:
        inherited = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(code), inherited)))
    try:
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace",
            timeout=timeout_s, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = error.strerror if isinstance(error, OSError) else "it does not answer"
        raise ConversionRefused(f"--python {shown(command[0])}: {reason}") from error


def _package(
    python: Path, folder: Path, done: subprocess.CompletedProcess[str], kept: Path | None
) -> Package:
    """Return what the child made; its objects move to ``kept``, or into memory without one."""
    try:
        answer: dict[str, Any] = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConversionRefused(
            f"--python {shown(str(python))}: the conversion ended with exit code "
            f"{done.returncode}: {_said(done)}"
        ) from None
    if "missing" in answer:
        raise _lacking(python, answer["missing"])
    if "refused" in answer:
        raise ConversionRefused(str(answer["refused"]))
    manifest = parse_manifest(answer["manifest"])
    objects: list[ObjectSource] = []
    for digest in answer["objects"]:
        path = folder / "objects" / digest_hex(digest)
        found: ObjectSource
        if kept is None:
            found = BytesObject.of(path.read_bytes())
        else:
            path = Path(shutil.move(path, kept))
            found = FileSlice.of(path, 0, path.stat().st_size)
        if found.digest != digest:
            raise ConversionRefused(f"--python {shown(str(python))}: object {digest} is damaged")
        objects.append(found)
    return Package(manifest, tuple(objects))


def _said(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1][:_SAID_CHARACTERS] if lines else "it says nothing"
