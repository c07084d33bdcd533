"""The benches: each module here is one, found by its name.

To add one, put ``NAME.py`` beside this file with ``main(argv: list[str]) -> int``. The first line
of its docstring is what ``scripts/bench --help`` says of it; nothing else has to know it. A module
whose name begins with an underscore is none.
"""

from __future__ import annotations

import ast
from pathlib import Path

# The exit code of a bench that could not run, or not all of it.
EXIT_BROKEN = 3
_FOLDER = Path(__file__).parent


def found_benches(folder: Path = _FOLDER) -> dict[str, str]:
    """Return the first line of each bench's docstring by its name, without importing any."""
    return {
        path.stem: (ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "").split("\n")[0]
        for path in sorted(folder.glob("*.py"))
        if not path.stem.startswith("_")
    }
