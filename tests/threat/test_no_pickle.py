"""What runs code when it is read is read on the pusher's side only: no module that serves can."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
# Each of them opens pickles, or sends them between processes.
OPENERS: Final = frozenset(
    {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal", "multiprocessing",
     "skops", "torch"}
)  # fmt: skip
# The pusher's side: conversion, and recipes that train.
PUSHERS: Final = ("models/convert/", "models/zoo/")


def openers_in(code: str) -> set[str]:
    """Return what opens pickles in a module: what it imports, and arrays that may hold objects."""
    return {name for node in ast.walk(ast.parse(code)) for name in _openers(node)}


def _openers(node: ast.AST) -> Iterator[str]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    elif isinstance(node, ast.Call):
        # What is imported by its name in a text.
        names = [arg.value for arg in node.args
                 if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]  # fmt: skip
        for keyword in node.keywords:
            is_off = isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            if keyword.arg == "allow_pickle" and not is_off:
                yield "allow_pickle"
    yield from (name for name in names if name.partition(".")[0] in OPENERS)


def test_pickle_is_opened_by_no_module_that_serves() -> None:
    """Neither by an import nor by an array of objects, wherever the bytes come from."""
    found = {}
    for package in ("registry", "models", "serving"):
        for path in (ROOT / package).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(PUSHERS) and (openers := openers_in(path.read_text("utf-8"))):
                found[name] = openers
    assert found == {}


def test_pickle_is_seen_in_each_form() -> None:
    """The look finds what it looks for."""
    assert openers_in("import pickle as p") == {"pickle"}
    assert openers_in("def f():\n    from multiprocessing.connection import Client") == {
        "multiprocessing.connection"
    }
    assert openers_in('importlib.import_module("joblib")') == {"joblib"}
    assert openers_in("np.load(f, allow_pickle=True)") == {"allow_pickle"}
    assert openers_in("np.load(f, allow_pickle=False)") == set()
