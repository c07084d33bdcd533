"""How many requests of one model a worker holds at once: a bulkhead around each model."""

from __future__ import annotations

from serving.errors import QueueFull


class ModelFull(QueueFull):
    """The worker holds as many requests of the model as are set for it."""


class ModelGate:
    """Counts the requests of a model, whatever version answers them. Event-loop thread only."""

    __slots__ = ("in_flight", "limit", "model")

    def __init__(self, model: str, limit: int | None = None) -> None:
        self.model = model
        self.limit = limit
        self.in_flight = 0

    def enter(self) -> None:
        """Count a request in, or raise ModelFull; each needs exactly one ``leave``."""
        if self.limit is not None and self.in_flight >= self.limit:
            raise ModelFull(
                f"model {self.model}: {self.in_flight} of {self.limit} requests "
                "(max_concurrency) are in this worker"
            )
        self.in_flight += 1

    def leave(self) -> None:
        """Count a request out."""
        self.in_flight -= 1
