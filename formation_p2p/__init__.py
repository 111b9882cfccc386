"""Machines that find each other on a libp2p Kademlia DHT and run each other's work.

    async with Node.join() as node:            # or: with SyncNode.join() as node
        squares = await node.map(square, range(100), needs="cpu=1,memory=1GiB")

public.py lists all that is public; everything else may change in any release. It is imported when
one of its names is first asked for: a command that talks to a running node needs none of them. Nor
do the names that modules of tasks import on a worker, which are found without it.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from formation_p2p.public import *  # noqa: F403 - the names that it lists

    __all__: list[str]
    __version__: str

_VERSION = "formation_p2p.core.version"
_OF_TASKS = ("checkpoint", "leaving", "restored")


def __getattr__(name: str) -> object:
    if name in _OF_TASKS:
        module = importlib.import_module("formation_p2p.drivers.python_checkpoint")
        return globals().setdefault(name, getattr(module, name))
    if name == "__version__":
        return globals().setdefault(name, importlib.import_module(_VERSION).RELEASE)
    if name == "__all__":
        return [*_listed(), "__version__"]
    if name[0] != "_" and name in (listed := _listed()):
        return globals().setdefault(name, listed[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), "__version__", *_listed()})


def _listed() -> dict[str, object]:
    found = vars(importlib.import_module("formation_p2p.public"))
    # pytest, whose plugin we bring, adds names that are no identifiers to the modules of plugins.
    return {name: found[name] for name in sorted(found) if name[0] != "_" and name.isidentifier()}
