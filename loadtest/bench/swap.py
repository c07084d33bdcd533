"""Swap: a small model's p99 while heavy models load and unload, and a thousand swaps under load."""

from __future__ import annotations

from loadtest.swap_under_load import main

__all__ = ["main"]
