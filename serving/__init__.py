"""The server: data plane, admin plane, workers and the command line."""
