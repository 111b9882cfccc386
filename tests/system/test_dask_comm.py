"""Dask's messages over unix sockets, as those of a gang's streams are: no node takes part."""
