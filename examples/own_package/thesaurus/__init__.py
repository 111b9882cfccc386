"""Words that mean about the same."""
