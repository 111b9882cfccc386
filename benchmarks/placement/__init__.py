"""How fast workers are found and chosen; `python -m benchmarks.placement`."""
