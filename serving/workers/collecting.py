"""Garbage collection in a worker: rarely, and never through what stays for good.

Requests in flight are what the collector counts: at its usual threshold 64 of them set it off with
nearly every batch, and the oldest generation holds every module, class and route that was imported,
tens of milliseconds to look through, in which nobody is answered.
"""

from __future__ import annotations

import gc
from typing import Final

# Under load this is once a second: ten objects a request are counted although they are freed, for
# those that are freed just after a collection are not subtracted. Only errors leave true garbage.
YOUNG_OBJECTS: Final = 50_000


def collect_rarely() -> None:
    """Leave out all that exists now, and look through the rest less often.

    Before the first version is loaded: of what is left out, cycles are never freed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
