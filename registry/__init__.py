"""The registry: content-addressed store, versions, lifecycle. Standard library only."""
