"""Trainings to copy: from a Parquet file through a search for settings to a pushed version."""
