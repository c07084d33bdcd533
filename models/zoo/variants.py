"""``python -m models.zoo.variants KIND FOLDER``: makes one of many versions of a large model.

The bench of the weights makes, pushes and removes them one after the other, for all of them
together would not fit on most disks. Prints the path of the model.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from models.zoo.encoder import EncoderShape, write_encoder
from models.zoo.recommender import USERS, write_recommender

_HEADS: Final = 12
_USERS_A_MIB: Final = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one model; return the exit code."""
    options = _parser().parse_args(arguments)
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    if options.kind == "recommender":
        path = write_recommender(
            folder, mib=options.table_mib, variant=options.number, table=options.table,
            users=max(USERS, options.own_mib * _USERS_A_MIB),
        )  # fmt: skip
    else:
        shape = EncoderShape(
            layers=options.layers, width=options.width, heads=_HEADS, inner=4 * options.width
        )
        path = write_encoder(folder / f"encoder-{options.number}.onnx", shape, options.number)
    sys.stdout.write(f"{path}\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m models.zoo.variants", description=__doc__)
    add = parser.add_argument
    add("kind", choices=("recommender", "encoder"))
    add("folder", metavar="FOLDER", type=Path)
    add("--number", type=int, default=1, help="which version, from 1")
    add("--table-mib", type=int, default=256, help="recommender: the table that versions share")
    add("--table", type=int, default=0, help="recommender: which table; no two share a row")
    add("--own-mib", type=int, default=0, help="recommender: a user table of each version's own")
    add("--width", type=int, default=768, help="encoder: a multiple of 12")
    add("--layers", type=int, default=12, help="encoder: all but the last two are shared")
    return parser


if __name__ == "__main__":
    sys.exit(main())
