"""The models that are served, as manifests and objects that plain HTTP requests can upload."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadtest.lab.bed import ROOT
from loadtest.lab.processes import LabFailed


@dataclass(frozen=True, slots=True)
class Package:
    """One version to publish: its model, its manifest, and its objects by digest."""

    model: str
    manifest: dict[str, Any]
    objects: dict[str, Path]


class Packages:
    """The packages in a folder; ``make`` makes them."""

    def __init__(self, folder: Path, spares: int) -> None:
        self._folder = folder
        self.spares = spares

    @classmethod
    def make(
        cls, folder: Path, spares: int = 64, *, tables: int = 0, table_mib: int = 1
    ) -> Packages:
        """Make the packages in a process of its own; raises LabFailed with its last words."""
        counts = {"--spares": spares, "--tables": tables, "--table-mib": table_mib}
        flags = [str(part) for item in counts.items() for part in item]
        done = subprocess.run(
            [sys.executable, "-m", "models.zoo.faults", str(folder), *flags],
            cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise LabFailed(f"making the models failed: {done.stderr.strip()[-500:]}")
        return cls(folder, spares)

    def read(self, name: str) -> Package:
        """Return the package ``name``, such as ``echo-1``."""
        document = json.loads((self._folder / f"{name}.json").read_text("utf-8"))
        objects = self._folder / "objects"
        return Package(
            document["manifest"]["model"], document["manifest"],
            {digest: objects / digest.partition(":")[2] for digest in document["objects"]},
        )  # fmt: skip

    def spare(self, number: int) -> Package:
        """Return a package with objects of its own; they come round after ``spares``."""
        return self.read(f"spare-{number % self.spares}")
