"""Models: signatures, runtimes, conversion, inspection."""
