"""Where requests without a version go: weighted versions, and shadows beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from registry.manifest import Json, JsonObject

WEIGHT_SUM: Final = 100


@dataclass(frozen=True, slots=True)
class Share:
    """One version's part of the traffic, in percent."""

    version: int
    weight: int


@dataclass(frozen=True, slots=True)
class Traffic:
    """A split whose weights sum to 100, and the versions that get copies of its requests."""

    split: tuple[Share, ...]
    shadow: tuple[int, ...] = ()

    @classmethod
    def whole(cls, version: int) -> Traffic:
        """Return the traffic that goes to one version alone."""
        return cls((Share(version, WEIGHT_SUM),))

    @property
    def versions(self) -> tuple[int, ...]:
        """Every version that answers or shadows, each once."""
        return tuple(dict.fromkeys((*(share.version for share in self.split), *self.shadow)))

    def weight_of(self, version: int) -> int:
        """Return the percent of requests that the version answers."""
        return next((share.weight for share in self.split if share.version == version), 0)

    def to_json(self) -> JsonObject:
        """Return the form that ``of_json`` reads."""
        split: list[Json] = [{"version": s.version, "weight": s.weight} for s in self.split]
        return {"split": split, "shadow": list(self.shadow)}

    @classmethod
    def of_json(cls, document: Mapping[str, Any]) -> Traffic:
        """Return the traffic of a document; only ever given what ``to_json`` made."""
        return cls(
            tuple(Share(item["version"], item["weight"]) for item in document["split"]),
            tuple(document["shadow"]),
        )
