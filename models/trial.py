"""One version under trial: the questions that its throwaway child is asked, and their answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from models.child import NO_ANSWER, InspectionChild, Limits
from models.errors import LoadFailed
from models.inspect import as_inspection
from models.pack_build import Built
from models.servable import Inspection
from models.weight_mode import Measured, parse_measured
from registry.manifest import JsonObject, Manifest


@dataclass(frozen=True, slots=True)
class Trial:
    """All questions have the same limits, and the time that is left of ``until_s`` (monotonic).

    ``memory_bytes``: private memory beside mapped tensors. Each raises LoadFailed.
    """

    manifest: Manifest
    child: InspectionChild
    memory_bytes: int
    until_s: float
    threads: int
    cancelled: threading.Event

    def ask(self, request: JsonObject) -> JsonObject:
        """Return the answer to any question."""
        left_s = max(1.0, self.until_s - time.monotonic())
        return self.child.ask(request, Limits(self.memory_bytes, left_s, self.threads))

    def shape(self) -> str:
        """Return a hash of the graph without the values of its tensors."""
        shape = self.ask({"task": "describe"}).get("shape")
        if not isinstance(shape, str):
            raise LoadFailed(NO_ANSWER)
        return shape

    def inspect(self, *, has_prepacking: bool = True) -> Inspection:
        """Return what the version itself does."""
        return as_inspection(self.ask({"task": "inspect", "has_prepacking": has_prepacking}))

    def inspect_packed(self, built: Built) -> tuple[Inspection, float]:
        """Return what the packed form does, and how far its answer is from the published one's."""
        found = self.ask({"task": "inspect", **built.to_json()})
        difference = found.get("difference")
        if not isinstance(difference, float):
            raise LoadFailed(NO_ANSWER)
        return as_inspection(found), difference

    def compare(self, built: Built) -> Mapping[str, Measured]:
        """Return what each form of the version takes, by its name."""
        found = self.ask({"task": "compare", **built.to_json()})
        try:
            return {
                name: parse_measured(item)
                for name, item in found.items()
                if name != "packed" or built.graph
            }
        except (KeyError, TypeError, ValueError, AttributeError):
            raise LoadFailed(NO_ANSWER) from None

    def check_cancelled(self, error: Exception) -> None:
        """Raise ``error`` where the server stops: then it is no finding."""
        if self.cancelled.is_set():
            raise error
