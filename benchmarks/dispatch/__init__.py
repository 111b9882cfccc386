"""Small tasks, side by side with Ray, Dask and a pool: `python -m benchmarks.dispatch`."""
