"""Attacks on a real server over sockets; ``tests/threats.py`` says which is for what."""
