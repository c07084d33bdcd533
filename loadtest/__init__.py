"""Load tests that see the server as a black box."""
