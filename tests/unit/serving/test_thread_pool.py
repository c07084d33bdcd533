"""The parent's threads are all there before the first call needs one."""

from __future__ import annotations

import threading

from serving.thread_pool import started_pool


def test_a_started_pool_never_grows() -> None:
    """As many threads as it may have, at once, and it works."""
    with started_pool(3, "test-pool") as pool:
        names = {each.name for each in threading.enumerate() if each.name.startswith("test-pool")}
        assert len(names) == 3
        assert pool.submit(threading.current_thread).result().name in names
