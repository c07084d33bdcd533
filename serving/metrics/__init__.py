"""Counting in shared memory: workers count, the parent reads, nothing is lost with a process."""
