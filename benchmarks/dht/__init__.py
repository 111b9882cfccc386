"""Four DHTs side by side: `python -m benchmarks.dht`. See `__main__.py`."""
