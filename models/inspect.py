"""Trying a version in a throwaway child process, so that a bad model harms nobody else."""

from __future__ import annotations

import threading
from pathlib import Path

from models.child import NO_ANSWER, InspectionChild, Limits, needs_more
from models.errors import LoadFailed
from models.servable import Inspection, parse_inspection
from registry.errors import InvalidInput
from registry.manifest import JsonObject, Manifest

__all__ = ["Limits", "as_inspection", "check_private_bytes", "inspect_version"]


def inspect_version(
    manifest: Manifest,
    objects_dir: Path,
    limits: Limits,
    cancelled: threading.Event | None = None,
) -> Inspection:
    """Open and try a version in a child process; raises LoadFailed with the reason.

    Blocks up to ``limits.timeout_s``; setting ``cancelled`` from another thread ends it earlier.
    The child dies with the thread that calls this.
    """
    with InspectionChild(manifest, objects_dir, cancelled) as child:
        inspection = as_inspection(child.ask({"task": "inspect"}, limits))
    check_private_bytes(inspection, limits.memory_bytes)
    return inspection


def as_inspection(found: JsonObject) -> Inspection:
    """Return what the child answered to ``inspect``, or raise LoadFailed."""
    try:
        return parse_inspection(found)
    except (ValueError, KeyError, TypeError, InvalidInput):
        raise LoadFailed(NO_ANSWER) from None


def check_private_bytes(inspection: Inspection, memory_bytes: int) -> None:
    """Raise LoadFailed where a version takes more private memory than it may."""
    if inspection.private_bytes > memory_bytes:
        raise needs_more(memory_bytes)
