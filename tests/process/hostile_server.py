"""The real server with workers that load hostile models; see ``hostile_worker``."""

import sys

from serving.__main__ import main

if __name__ == "__main__":
    sys.exit(main([sys.executable, "-m", "tests.process.hostile_worker"]))
