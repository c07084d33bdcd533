"""Bytes to tensors and back: pure functions without event loop, HTTP objects or runtime."""
