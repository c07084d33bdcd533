"""The live console: a page for people, and the stream that keeps it up to date."""
