"""Converters: one file a model family, run on the pusher's side."""
