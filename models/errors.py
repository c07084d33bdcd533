"""What can go wrong with a model, in the models layer's own words."""

from __future__ import annotations


class ModelsError(Exception):
    """Base of all errors that the models layer raises on purpose."""


class ConversionRefused(ModelsError):
    """A file on the pusher's side cannot become a version; the message says why and what to do."""


class LoadFailed(ModelsError):
    """A version cannot be served: its graph is refused, damaged, or needs too much."""


class MemoryExceeded(LoadFailed):
    """The inspection took more private memory than it was given."""


class OutOfMemory(LoadFailed):
    """There was no memory left to load a version, or for its first run; with more it would load."""


class InputRefused(ModelsError):
    """The graph itself refused the input, such as an index out of range: the caller's fault."""


class RunFailed(ModelsError):
    """The computation failed through no fault of the caller."""


class RunTooLarge(RunFailed):
    """The run needed more memory than runs may take: its input asks for too much."""


class RunTerminated(ModelsError):
    """The run was ended from outside, because it took longer than the version may take."""


def warm_up_failed(error: ModelsError) -> LoadFailed:
    """Return why a version whose first run failed cannot be loaded."""
    kind = OutOfMemory if isinstance(error, RunTooLarge) else LoadFailed
    return kind(f"warm-up failed: {error}")
