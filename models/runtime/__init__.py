"""Runtimes: one file for each way to compute a version."""
