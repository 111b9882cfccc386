"""How a node takes part in a network, and how `Node` and `SyncNode` join one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, Self

from formation_p2p.api.code import CodeChoice, CodePaths, code_paths
from formation_p2p.assembly import DEFAULT_PARAMETERS, PeerParameters
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import format_bytes
from formation_p2p.machine.core.bounds import check_host_name
from formation_p2p.machine.home import Home
from formation_p2p.observe.tracing import Tracing
from formation_p2p.peer.runtime_config import Observe
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.state.journal import JournalParameters
from formation_p2p.state.state import Retention
from formation_p2p.trust.core.network import Network, parse_invite
from formation_p2p.workload.core.blob import CHUNK_BYTES

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

# Every interface, in both families, a port that is free. `()` is for a node that only asks others.
LISTEN_ANYWHERE: Final = ("/ip4/0.0.0.0/tcp/0", "/ip6/::/tcp/0")
DEFAULT_RETENTION: Final = Retention()
# Data come in chunks of so much; less is a number without its unit.
MIN_CACHE_BYTES: Final = CHUNK_BYTES


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """How a node takes part, as for `Node.join`. Without a network it is the home's. One that does
    not share memory gives and takes what is large over the network alone, also on one machine."""

    home: Home
    network: Network | None
    listen: tuple[str, ...]
    announce: tuple[str, ...]
    state: Path | None
    retention: Retention
    metrics: str | None
    tracing: Tracing | None
    code: CodePaths = "auto"
    parameters: PeerParameters = DEFAULT_PARAMETERS
    journal: JournalParameters | None = None
    observers: tuple[Observe, ...] = ()
    shares_memory: bool = True
    cache_bytes: int | None = None
    name: str | None = None
    relay: RelaySettings | None = None
    # Whatever peers say of its reach: for tests of nodes on one machine, which all are reached.
    reserves: bool | None = None
    mdns: bool | None = None


class NodeBase:
    """How `Node` and `SyncNode` join a network."""

    def __init__(self, config: NodeConfig) -> None:
        raise NotImplementedError

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"a {type(self).__name__} cannot travel to a worker: call with data, or with what its"
            " put has returned; a function that needs the network joins it there, by Node.join"
        )

    @classmethod
    def join(
        cls,
        join: str | None = None,
        *,
        home: Path | str | None = None,
        listen: Sequence[str] = LISTEN_ANYWHERE,
        announce: Sequence[str] = (),
        state: Path | str | None = None,
        retention: Retention = DEFAULT_RETENTION,
        metrics: str | None = None,
        traces: bool | TracerProvider = False,
        code: CodeChoice = "auto",
        cache_bytes: int | None = None,
        name: str | None = None,
        renew: bool = True,
        relay: RelaySettings | None = None,
        mdns: bool | None = None,
    ) -> Self:
        """Take part in the network of an invite, or in that of the home folder.

        A `Node` does so once it is entered, by `async with` or `await`; a `SyncNode` at once.

        `home` keeps the identity and the network (default: `$FORMATION_HOME`, or
        `~/.local/share/formation`). `listen` are multiaddrs; empty for a node that only submits.
        `announce` is where others reach it, if that is not where it listens.

        `state` is a file that keeps the jobs given to `submit`, their results, and the leases
        held for them. The node goes on with the jobs that it finds there (see `jobs`); ended jobs
        are kept as `retention` says. One node at a time may use it.

        `metrics` is an address, such as `127.0.0.1:9464`, where Prometheus finds what
        docs/reference/metrics.md lists. `traces` has jobs traced with OpenTelemetry
        (observe/tracing.py), by the tracer provider that the application has set, or by one
        given here.

        `code` is what goes along with calls of Python functions (docs/explanation/environments.md):
        `auto` for the modules of your own that they refer to, and what those import; `main` for
        nothing but what `__main__` defines; or these files and folders exactly.

        `cache_bytes` bounds the data of others that the node keeps on its disk, by default a tenth
        of what is free there and 10 GiB at most (docs/explanation/data.md). It is 1 MiB at least.

        `name` is what people see this node as, beside its id: by default that of the home, which
        is the host's name unless `formation worker --name` has set another (docs/how-to/names.md).

        With `renew` the node has its grant renewed before it ends, where a node that has the
        network's root key is online and the invitation allows it; and renews those of others
        where the root key is in its own home (docs/explanation/security.md).

        With `relay` the node connects members of the network (`RelaySettings()`), or anyone, that
        cannot be dialled, as a gate does: others must be able to dial it
        (docs/explanation/reach.md).

        With `mdns` the node finds the others of its network on the same LAN, and tells them where
        it listens, by multicast DNS (docs/explanation/reach.md). None is for True, unless the node
        listens on this machine alone; or listens nowhere, and all gates are on this machine.

        Raises InvalidInput for a malformed invite or name, or too small a cache; entering raises
        LocalError where the node has no network, or the network does not come up, and StateError
        where the state cannot be used.
        """
        if name is not None:
            check_host_name("name", name)
        if cache_bytes is not None and cache_bytes < MIN_CACHE_BYTES:
            least = format_bytes(MIN_CACHE_BYTES)
            problem = f"{cache_bytes} bytes are less than {least}, in which no data fits"
            raise InvalidInput("cache", f"{problem}; write it with its unit, such as 10GiB")
        tracing = None if traces is False else Tracing(None if traces is True else traces)
        config = NodeConfig(
            Home(None if home is None else Path(home)),
            None if join is None else parse_invite(join),
            tuple(listen),
            tuple(announce),
            None if state is None else Path(state),
            retention,
            metrics,
            tracing,
            code_paths(code),
            cache_bytes=cache_bytes,
            parameters=replace(DEFAULT_PARAMETERS, renews=renew),
            name=name,
            relay=relay,
            mdns=mdns,
        )
        return cls(config)
