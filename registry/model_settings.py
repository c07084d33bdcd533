"""The settings of one model: a bulkhead, so that its load cannot spoil the others.

None means the server's own setting holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from registry.errors import InvalidInput
from registry.ident import shown
from registry.manifest import JsonObject

DEFAULT_RETAIN: Final = 10
# Lowest and highest value of each number; batching is a yes or no.
RANGES: Final[Mapping[str, tuple[float, float]]] = {
    "max_concurrency": (1, 1_000_000),
    "queue_rows": (1, 100_000_000),
    "queue_ms": (0, 3_600_000),
    "priority": (-100, 100),
    "max_run_s": (0.01, 604_800),
    "timeout_ms": (1, 3_600_000),
    "max_output_bytes": (1, 2**53 - 1),
    "retain": (0, 1_000_000),
}
_REAL: Final = frozenset({"max_run_s"})


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is set for one model.

    ``max_concurrency``: requests of the model in one worker at once. ``queue_rows``: rows that wait
    in one worker. ``queue_ms``: milliseconds of work that wait in one worker, 0: no bound in time.
    ``priority``: higher goes first where run slots are short, default 0.
    ``batching``: False: requests never share a run. ``retain``: how many old versions are kept
    that are not loaded, default DEFAULT_RETAIN.
    """

    max_concurrency: int | None = None
    queue_rows: int | None = None
    queue_ms: int | None = None
    priority: int | None = None
    batching: bool | None = None
    max_run_s: float | None = None
    timeout_ms: int | None = None
    max_output_bytes: int | None = None
    retain: int | None = None

    def to_json(self) -> JsonObject:
        """Return the form that ``of_json`` reads: what is set, by name."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> ModelSettings:
        """Return the settings of a document; only ever given what ``to_json`` made."""
        return cls(**document)


NAMES: Final = tuple(field.name for field in fields(ModelSettings))


def changed(settings: ModelSettings, changes: Mapping[str, Any], where: str) -> ModelSettings:
    """Return ``settings`` with ``changes``: a value sets, None resets, what is not named stays.

    Raises InvalidInput naming key, value and what is allowed.
    """
    values: dict[str, Any] = asdict(settings)
    for key, value in changes.items():
        if key not in NAMES:
            near = difflib.get_close_matches(key, NAMES, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"use {', '.join(NAMES)}"
            raise InvalidInput(f"{where}: unknown setting {shown(key)}: {hint}")
        values[key] = None if value is None else _checked(key, value, f"{where}: {key}")
    return ModelSettings(**values)


def _checked(key: str, value: Any, where: str) -> bool | int | float:
    if key not in RANGES:
        if type(value) is not bool:
            raise InvalidInput(f"{where}: {shown(value)} must be true or false, or null to reset")
        return value
    low, high = RANGES[key]
    kind = "a number" if key in _REAL else "an integer"
    is_kind = type(value) is int or (key in _REAL and type(value) is float)
    # Written so that NaN, which compares false with everything, is refused as well.
    if not is_kind or not low <= value <= high:
        raise InvalidInput(
            f"{where}: {shown(value)} is not allowed: use {kind} from {low} to {high}, or null to "
            "reset"
        )
    return float(value) if key in _REAL else int(value)
