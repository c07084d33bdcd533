"""What is shipped: releases in which known faults are mended, under licences that allow it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
import tomllib
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from tests.process.server import ROOT

LOCK = (ROOT / "requirements.lock").read_text("utf-8")
# A package may be pinned more than once, for different releases of Python.
PINS = [
    (re.sub("[-_.]+", "-", name).lower(), Version(version))
    for name, version in re.findall(r"^([A-Za-z0-9._-]+)==([^ ;\\]+)", LOCK, re.MULTILINE)
]
PINNED = {name for name, _ in PINS}
# The release in which what the comment names was mended.
FLOORS = {
    "onnx": "1.21",  # paths of external data that leave the folder
    "onnxruntime": "1.28.1",
    "starlette": "1.3.1",
    "h11": "0.16",  # chunks whose end is taken for anything
    "orjson": "3.11.6",  # recursion without a bound
    "protobuf": "6.33.5",  # nesting without a bound
}
# Words of licences that allow use and shipping beside Apache-2.0 code, as packages spell them.
ALLOWED = re.compile(
    r"\b(?:apache|bsd|mit|isc|psf|python software foundation|mpl|mozilla public|zlib|unlicense"
    r"|public domain|cc0|hpnd|mit-cmu|zope public|zpl|0bsd|3-clause|dual license)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("name", FLOORS)
def test_the_lock_file_holds_the_floor(name: str) -> None:
    assert min(version for other, version in PINS if other == name) >= Version(FLOORS[name])


def test_the_project_asks_for_the_floors() -> None:
    """Whoever installs without the lock file gets no older release either."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    asked = {found.name: found for found in map(Requirement, project["dependencies"])}
    for name in set(FLOORS) & set(asked):
        older = "0.0.1"
        assert FLOORS[name] in asked[name].specifier
        assert older not in asked[name].specifier


def test_no_parser_of_forms_is_installed() -> None:
    """python-multipart reads bodies before any limit of ours; nothing here takes forms."""
    assert "python-multipart" not in PINNED
    assert importlib.util.find_spec("python_multipart") is None


def test_every_package_is_pinned_by_hash() -> None:
    blocks = re.split(r"^(?=[A-Za-z0-9._-]+==)", LOCK, flags=re.MULTILINE)[1:]
    assert len(blocks) == len(PINS) > 50
    assert [block.split()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert "://" not in "".join(line for line in LOCK.splitlines() if not line.startswith("#"))


def sbom() -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "sbom.py")],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_bill_of_materials_is_complete_and_its_licences_allow_it() -> None:
    """Each locked package with its hashes; what is installed has a licence that we may ship."""
    document = sbom()
    assert (document["bomFormat"], document["specVersion"]) == ("CycloneDX", "1.5")
    parts = [(re.sub("[-_.]+", "-", part["name"]).lower(), part) for part in document["components"]]
    assert [(name, Version(part["version"])) for name, part in parts] == PINS
    assert len({part["bom-ref"] for _, part in parts}) == len(PINS)
    unknown = []
    for name, part in parts:
        assert part["hashes"]
        texts = [each["license"]["name"] for each in part.get("licenses", [])]
        if importlib_has(name) and not (texts and ALLOWED.search(texts[0])):
            unknown.append(f"{name}: {texts}")
    assert unknown == []


def importlib_has(name: str) -> bool:
    from importlib import metadata

    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True
