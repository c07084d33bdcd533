"""The control plane: the one writer of the wanted state, loads, memory, operations."""
