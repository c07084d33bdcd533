"""The real server with workers that cannot start."""

import sys

from serving.__main__ import main

if __name__ == "__main__":
    sys.exit(main([sys.executable, "-m", "tests.process.scripted_worker", "stillborn"]))
