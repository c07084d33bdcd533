"""The data plane: from the body of a request to the body of its answer."""
