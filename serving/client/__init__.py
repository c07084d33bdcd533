"""The client of a running server, as the command line uses it."""
