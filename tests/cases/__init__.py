"""Faults that users of other model servers reported in public; each test has its case's id."""
