"""A small network under everything at once: `python -m tests.soak --help`."""
