"""Lets ``python -m serving.cli`` do what ``ramrack`` does."""

from __future__ import annotations

import sys

from serving.cli import main

sys.exit(main())
