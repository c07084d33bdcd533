"""What a process goes on holding: its live objects, counted by type."""

from __future__ import annotations

import asyncio
import gc
from collections import Counter

_OURS = ("models.", "registry.", "serving.")
_LOCKS = (asyncio.Event, asyncio.Lock, asyncio.Task)


def live_objects() -> Counter[str]:
    """Count what is alive of our own types, and of what coroutines wait for each other by."""
    gc.collect()
    kinds = (type(each) for each in gc.get_objects())
    return Counter(
        f"{kind.__module__}.{kind.__qualname__}"
        for kind in kinds
        if str(kind.__module__).startswith(_OURS) or kind in _LOCKS
    )
