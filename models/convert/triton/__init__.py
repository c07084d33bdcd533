"""Model repositories of Triton: what of them can be served here, and what not, with the reason."""
