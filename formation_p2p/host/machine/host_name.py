"""The name of this machine, in the form that names of nodes have."""

from __future__ import annotations

import re
import socket
import unicodedata
from typing import Final

from formation_p2p.core.resources.bounds import MAX_HOST_NAME_CHARS

# Of a machine whose own name has no letter or digit that may be in a name.
NAMELESS: Final = "node"
_OTHERS: Final = re.compile(r"[^a-z0-9_-]+", re.ASCII)


def host_name() -> str:
    """Of this host, without its domain."""
    return name_from(socket.gethostname())


def name_from(host: str) -> str:
    """What is nearest to a host's name among the names of nodes.

    >>> name_from("Büro PC.example.org")
    'buro-pc'
    """
    letters = unicodedata.normalize("NFKD", host.partition(".")[0])
    plain = letters.encode("ascii", "ignore").decode().lower()
    return _OTHERS.sub("-", plain)[:MAX_HOST_NAME_CHARS].strip("_-") or NAMELESS
