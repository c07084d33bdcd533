"""The real server, whose wall clock jumps by days at every look; its workers' clocks do, too."""

import itertools
import sys
import time

from serving.__main__ import main as server_main
from serving.workers.worker import main as worker_main
from serving.workers.worker import runtime_loader

DAY_S = 86_400.0


def jump() -> None:
    """Let each look at the wall clock find another day, now ahead and now behind."""
    real, days = time.time, itertools.cycle((0.0, 400 * DAY_S, -400 * DAY_S, DAY_S, -DAY_S))
    time.time = lambda: real() + next(days)


if __name__ == "__main__":
    jump()
    if len(sys.argv) > 1:
        sys.exit(worker_main(loader_factory=runtime_loader))
    sys.exit(server_main([sys.executable, "-m", "tests.process.jumping_server"]))
