"""Fuzzers: bytes into the parsers that strangers reach; anything but a planned error is a find."""
