"""Small models of every family that can be pushed, with what their own library answers.

A family is one module here with ``CASES``; nothing else has to know it. ``python -m
scripts.parity_cases OUT`` trains them and writes what ``scripts/bench parity`` pushes and compares.
"""
