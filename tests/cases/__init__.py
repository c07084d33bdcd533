"""Public bug reports of servers like this one, as tests: each is named after its case."""
