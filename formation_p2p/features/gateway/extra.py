"""Imported first where a gateway is made: says which command installs the extra `gateway`."""

try:
    import fastapi  # noqa: F401
    import h11  # noqa: F401
except ImportError as error:
    how = "install it with: pip install 'formation_p2p[gateway]'"
    raise ImportError(f"a gateway needs fastapi and h11; {how}") from error
