"""Writes what Ramrack is made of as CycloneDX JSON, from the lock file and what is installed.

``scripts/sbom [FILE]``: to a file, or to the standard output. Of packages that are locked for other
systems only, and so not installed here, the licence is not known.
"""

from __future__ import annotations

import json
import re
import sys
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
_PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)", re.MULTILINE)
_HASH = re.compile(r"--hash=sha256:(?P<hex>[0-9a-f]{64})")
_NAMESPACE: Final = uuid.UUID("8f2a4e0c-3f0c-4c5c-9a39-6d0b6b1c0a11")


def locked(text: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield name, version and SHA-256 digests of each package of a lock file."""
    pins = list(_PIN.finditer(text))
    ends = [pin.start() for pin in pins[1:]] + [len(text)]
    for pin, end in zip(pins, ends, strict=True):
        hashes = [found["hex"] for found in _HASH.finditer(text, pin.end(), end)]
        yield pin["name"], pin["version"], hashes


def licence_of(name: str) -> str:
    """Return what an installed package says of its licence; nothing where it is not installed."""
    try:
        about = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        return ""
    if "License-Expression" in about:
        return str(about["License-Expression"])
    classifiers = [
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier") or ()
        if text.startswith("License :: ") and text != "License :: OSI Approved"
    ]
    if classifiers:
        return " OR ".join(classifiers)
    # Some put the whole text into the field; its first line is the name.
    text = "\n".join(about.get_all("License") or ())
    return text.strip().split("\n")[0][:100] or _from_files(name)


def _from_files(name: str) -> str:
    """Return the licence of a package that carries it as a file only: MIT has no title."""
    for file in metadata.files(name) or ():
        if file.name.upper().startswith(("LICENSE", "LICENCE", "COPYING")):
            text = Path(str(file.locate())).read_text("utf-8", "replace").strip()
            is_mit = "Permission is hereby granted, free of charge" in text
            return "MIT" if is_mit else text.split("\n")[0].strip()[:100]
    return ""


def component(name: str, version: str, hashes: list[str]) -> dict[str, Any]:
    """Return one package as CycloneDX has it."""
    purl = f"pkg:pypi/{re.sub('[-_.]+', '-', name).lower()}@{version}"
    found: dict[str, Any] = {
        "type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in hashes],
    }  # fmt: skip
    if licence := licence_of(name):
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def document(lock: str, version: str) -> dict[str, Any]:
    """Return the whole document; the same lock file gives the same one."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(_NAMESPACE, lock)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application", "bom-ref": "ramrack", "name": "ramrack",
                "version": version, "licenses": [{"license": {"id": "Apache-2.0"}}],
            },
        },
        "components": [component(*package) for package in locked(lock)],
    }  # fmt: skip


def main(arguments: list[str]) -> int:
    """Write the document."""
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    text = json.dumps(document(lock, metadata.version("ramrack")), indent=1) + "\n"
    if arguments:
        Path(arguments[0]).write_text(text, "utf-8")
        print(f"wrote {arguments[0]}")
    else:
        sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
