"""Code, packages and data that travel, side by side with Ray and joblib: `python -m
benchmarks.data`."""
