"""The real server with workers that break one promise at a time; see ``broken_worker``."""

import sys

from serving.__main__ import main

if __name__ == "__main__":
    sys.exit(main([sys.executable, "-m", "tests.process.broken_worker"]))
