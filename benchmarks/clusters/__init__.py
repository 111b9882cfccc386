"""What machines do that work as one; `python -m benchmarks.clusters`."""
