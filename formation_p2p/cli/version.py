"""`formation version`."""

from __future__ import annotations

import importlib.metadata
import platform

from formation_p2p import __version__
from formation_p2p.cli import flags


def version(as_json: flags.JsonOption = False) -> None:
    """Print the version of formation, libp2p and Python."""
    found = {
        "formation": __version__,
        "libp2p": importlib.metadata.version("libp2p"),
        "python": platform.python_version(),
    }
    if as_json:
        from formation_p2p.cli.as_json import put

        put(found)
    else:
        print("\n".join(f"{name} {number}" for name, number in found.items()))
