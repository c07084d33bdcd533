"""``python -m models.zoo OUT_DIR``: trains the demo models and writes them with an index."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from models.zoo import BUILDERS, build_recommender
from models.zoo.recommender import MAX_MIB, MIN_MIB
from registry.manifest import JsonObject

INDEX_FILE: Final = "index.json"
_NEEDS: Final = {
    "fraud": ("lightgbm", "sklearn"),
    "digits": ("sklearn",),
    "wine": ("sklearn", "pandas"),
    "diabetes": ("sklearn", "pandas"),
    "churn": ("sklearn", "pandas"),
    "recommender": (),
}
_DESCRIPTION: Final = """\
Train small real models and write them to a folder, ready for `ramrack push`.

fraud        LightGBM, 30 numbers, 2 classes (text model, two versions)
digits       scikit-learn pipeline, 64 pixels, 10 classes
wine         random forest, class names as text
diabetes     gradient boosting, predicts a number
churn        pipeline over numbers and texts with missing values
recommender  ONNX with a large embedding table (two versions that share it)

OUT_DIR/index.json says for each model where its files are, and holds a request to
try it with and the answer to expect. The same command makes the same models.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Build what was asked for; return the exit code (0 done, 1 failed, 2 wrong usage)."""
    options = _parser().parse_args(arguments)
    folder: Path = options.out_dir
    names = options.only or list(BUILDERS)
    lacking = sorted({m for n in names for m in _NEEDS[n] if importlib.util.find_spec(m) is None})
    if lacking:
        sys.stderr.write(
            f"missing: {', '.join(lacking)}. Type: pip install 'ramrack[lightgbm,sklearn]'\n"
        )
        return 1
    try:
        index = _build(folder, names, options.recommender_mib)
        (folder / INDEX_FILE).write_text(json.dumps(index, indent=1), encoding="utf-8")
    except OSError as error:
        sys.stderr.write(f"cannot write to {folder}: {error.strerror}\n")
        return 1
    _say(f"wrote {folder / INDEX_FILE}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m models.zoo",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("out_dir", metavar="OUT_DIR", type=Path, help="folder for the files")
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=list(BUILDERS),
        help=f"make only this model (may be repeated): {', '.join(BUILDERS)}",
    )  # fmt: skip
    parser.add_argument(
        "--recommender-mib", metavar="MIB", type=_mib, default=256,
        help="size of the recommender's embedding table in MiB (default 256; 2048 for a 2 GB one)",
    )  # fmt: skip
    return parser


def _mib(text: str) -> int:
    if not text.isdigit() or not MIN_MIB <= int(text) <= MAX_MIB:
        raise argparse.ArgumentTypeError(f"{text!r}: use a number from {MIN_MIB} to {MAX_MIB}")
    return int(text)


def _build(folder: Path, names: Sequence[str], mib: int) -> JsonObject:
    builders = BUILDERS | {"recommender": functools.partial(build_recommender, mib=mib)}
    index: JsonObject = {}
    for name in dict.fromkeys(names):
        target = folder / name
        target.mkdir(parents=True, exist_ok=True)
        _say(f"making {name}\n")
        started = time.monotonic()
        index[name] = builders[name](target.resolve()).to_json()
        _say(f"{name}: {time.monotonic() - started:.1f} s\n")
    return index


def _say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
