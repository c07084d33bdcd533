"""Converting in another process: with another Python, or to be safe from a damaged file.

Another Python has the libraries that saved the model. Only this project's own code is lent to it,
through a folder of links; numpy, onnx, onnxruntime and the training libraries are the other
environment's. Its interpreter runs ``elsewhere_child``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from models.convert import ConvertOptions
from models.convert.bounded import Ended, TookTooLong, run_bounded, too_slow
from models.convert.detect import RUN_CODE, detect_format
from models.convert.extras import ModulesMissing
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
    with _asked(python, name, path, options) as (folder, answer, done):
        if answer is None:
            raise ConversionRefused(
                f"--python {shown(str(python))}: the conversion ended with exit code "
                f"{done.code}: {_said(done)}"
            )
        if "missing" in answer:
            raise _lacking(python, answer["missing"])
        return _package(folder, answer, options.folder)


def convert_apart(name: str, path: Path, options: ConvertOptions) -> Package:
    """Return what ``convert`` returns, computed by a process of its own.

    A library may crash on a damaged file, or never come to an end, and then ends nothing but that
    process. Raises ConversionRefused.
    """
    with _asked(Path(sys.executable), name, path, options) as (folder, answer, done):
        if answer is None:
            ended = f"exit code {done.code}"
            if done.code < 0:
                ended = signal.Signals(-done.code).name
            raise ConversionRefused(
                f"{shown(path.name)} cannot be converted: the library that opens it crashed "
                f"({ended}); the file may be damaged or truncated"
            )
        if "missing" in answer:
            raise ModulesMissing(answer["missing"])
        return _package(folder, answer, options.folder)


@contextmanager
def _asked(
    python: Path, name: str, path: Path, options: ConvertOptions
) -> Iterator[tuple[Path, dict[str, Any] | None, Ended]]:
    """Give the folder with what the child wrote, its answer (None: it gave none), how it ended."""
    with tempfile.TemporaryDirectory(prefix="ramrack-convert-") as text:
        folder = Path(text)
        (folder / "code").mkdir()
        (folder / "objects").mkdir()
        (folder / "scratch").mkdir()  # what a library that crashes leaves behind goes with it
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
            "timeout_s": options.timeout_s,
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        # -P: what lies where the command was called is no library.
        command = [str(python), "-P", "-m", "models.convert.elsewhere_child", str(folder)]
        try:
            done = _run(command, folder, options.timeout_s)
        except TookTooLong:
            raise too_slow(path, options.timeout_s) from None
        answer: dict[str, Any] | None
        try:
            answer = json.loads((folder / "answer.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = None
        yield folder, answer, done


def _check(python: Path) -> None:
    command = [str(python), "-c", _PROBE, *_NEEDED]
    try:
        done = _run(command, None, _PROBE_TIMEOUT_S)
    except TookTooLong:
        raise ConversionRefused(
            f"--python {shown(str(python))}: it does not answer within {_PROBE_TIMEOUT_S:g} s"
        ) from None
    try:
        version, missing = json.loads(done.output)
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


def _run(command: list[str], folder: Path | None, timeout_s: float) -> Ended:
    environment = dict(os.environ)
    if folder is not None:
        code, inherited = str(folder / "code"), environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (code, inherited)))
        environment["TMPDIR"] = str(folder / "scratch")
    try:
        return run_bounded(command, timeout_s, environment=environment)
    except OSError as error:
        raise ConversionRefused(f"--python {shown(command[0])}: {error.strerror}") from error


def _package(folder: Path, answer: dict[str, Any], kept: Path | None) -> Package:
    """Return what the child made; its objects move to ``kept``, or into memory without one."""
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
            raise ConversionRefused(f"object {digest} was damaged on its way from the conversion")
        objects.append(found)
    return Package(manifest, tuple(objects))


def _said(done: Ended) -> str:
    lines = (done.errors or done.output).strip().splitlines()
    return lines[-1][:_SAID_CHARACTERS] if lines else "it says nothing"
