"""Imported first where a cluster is made: says which command installs the extra `dask`."""

try:
    import dask.array  # noqa: F401
    import distributed  # noqa: F401
except ImportError as error:
    how = "install it with: pip install 'formation_p2p[dask]'"
    raise ImportError(f"a Dask cluster needs dask and distributed; {how}") from error
