"""Requests made from what a server says of its models, and checks of what it answers."""
