"""Garbage collection in a worker: rarely, and never through what stays for good.

A request leaves no cycle behind, so there is next to nothing to find. Yet the collector counts what
is in flight: at its usual threshold 64 requests set it off, and its oldest generation holds every
module, class and route that was imported, tens of milliseconds to look through, in which nobody is
answered.
"""

from __future__ import annotations

import gc
from typing import Final

# Far more objects than the requests in flight are made of.
YOUNG_OBJECTS: Final = 10_000


def collect_rarely() -> None:
    """Leave out all that exists now, and look through the rest less often.

    Before the first version is loaded: of what is left out, cycles are never freed.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
