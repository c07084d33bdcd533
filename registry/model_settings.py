"""The settings of one model: a bulkhead, so that its load cannot spoil the others.

None means the server's own setting holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from registry.manifest import JsonObject


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What is set for one model.

    ``max_concurrency``: requests of the model in one worker at once. ``queue_rows``: rows that wait
    in one worker. ``priority``: higher goes first where run slots are short, default 0.
    ``batching``: False: requests never share a run. ``retain``: how many old versions are kept.
    """

    max_concurrency: int | None = None
    queue_rows: int | None = None
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
