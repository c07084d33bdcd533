"""The admin plane: its HTTP calls, their checks and their answers."""
