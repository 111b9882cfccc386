"""`formation version`."""

from __future__ import annotations

import platform

from formation_p2p import __version__
from formation_p2p.command import flags
from formation_p2p.command.words import put


def version(as_json: bool = flags.JSON) -> None:
    """Print the version of formation and Python."""
    found = {
        "formation": __version__,
        "python": platform.python_version(),
    }
    if as_json:
        put(found)
    else:
        print("\n".join(f"{name} {number}" for name, number in found.items()))
