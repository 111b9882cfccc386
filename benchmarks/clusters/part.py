"""The figures of one module of this package: python -m benchmarks.clusters.part partitioning."""

from __future__ import annotations

import argparse
import importlib

from benchmarks.dispatch.timing import put

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", help="a module with a function `figures`")
    name = parser.parse_args().name
    put(importlib.import_module(f"benchmarks.clusters.{name}").figures())
