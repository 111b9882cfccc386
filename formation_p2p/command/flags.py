"""How options are declared, those that several commands share, and how their values are read."""

from __future__ import annotations

import codecs
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.command.command import Declared
from formation_p2p.core.errors import InvalidInput, Unauthorized
from formation_p2p.core.units import parse_bytes, parse_milli
from formation_p2p.machine.home_path import home_path

if TYPE_CHECKING:
    from formation_p2p.machine.core.capability import Limits
    from formation_p2p.machine.home import Home
    from formation_p2p.trust.core.charter import Charter
    from formation_p2p.trust.core.grants import Right
    from formation_p2p.trust.core.network import Network
    from formation_p2p.trust.core.quota import Quota
    from formation_p2p.workload.core.scope import Scope

# As the home's own file (machine/home.py): an invite with all possible gates takes 6 KiB, as a
# request for one does.
MAX_INVITE_CHARS: Final = 16 * 1024
_NO_INVITE: Final = "it is neither an invite nor a readable file; paste all of it"
# In UTF-8 and UTF-16.
_MAX_CHAR_BYTES: Final = 4
_PREFIX: Final = re.compile(r"\s*formation\d+:")

_DURATION: Final = re.compile(r"\s*(\d{1,9}(?:\.\d{1,9})?)\s*([smhdw]?)\s*", re.ASCII)
_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}


def option(
    flags: str, metavar: str, help: str, *, default: Any = None, shown: Any = None, **more: Any
) -> Any:
    """Of a command. Help shows the default where that is given as `shown`. `more` is as click has
    it."""
    more = {"metavar": metavar or None, "show_envvar": True, **more}
    if shown is not None:
        return Declared(flags, help, shown, more | {"show_default": True})
    return Declared(flags, help, default, more)


def switch(flags: str, help: str, **more: Any) -> Any:
    """An option of a command that is written or not."""
    return option(flags, "", help, default=False, **more)


def argument(metavar: str, help: str, *, default: Any = None) -> Any:
    """Of a command, which needs it where the default is `...`."""
    return Declared("", help, default, {"metavar": metavar})


HOME: Final = option(
    "--home",
    "DIR",
    "The folder of this node's identity and network; ~/.local/share/formation by default.",
    envvar="FORMATION_HOME",
)
JOIN: Final = option(
    "--join",
    "INVITE|FILE|URL|-",
    "Join the network of this invite first: the invite, a file with it, a gateway's URL with a "
    "token after #, or - for stdin. It is a secret, and others can see the arguments of a program: "
    "prefer - or a file.",
    envvar="FORMATION_JOIN",
)
NAME: Final = option(
    "--name",
    "NAME",
    "The name of this node for others; the name of the host by default. The home keeps it for "
    "the next time.",
)
STATE: Final = option(
    "--state",
    "FILE",
    "Keep the job and its results in this file, so that it survives a crash: see `formation "
    "resume`. Ctrl-C then keeps the job. One program at a time may use the file.",
    envvar="FORMATION_STATE",
)
METRICS: Final = option(
    "--metrics",
    "ADDR",
    "Serve metrics for Prometheus at this address, such as 127.0.0.1:9464.",
    envvar="FORMATION_METRICS",
)
NO_RENEW: Final = switch(
    "--no-renew",
    "Do not have this node's grant renewed; nor, where the root key is here, those of others.",
)
NO_MDNS: Final = switch(
    "--no-mdns",
    "Neither look for the network on this LAN nor announce it; see docs/explanation/reach.md.",
    envvar="FORMATION_NO_MDNS",
)
JSON: Final = switch("--json", "Write JSON for programs, not text for people.")


def refuse_local(scope: Scope | str | None) -> None:
    """Raises InvalidInput: a command's node runs no tasks, and a worker beside it is another."""
    if scope is not None and str(scope).strip() == "local":
        problem = (
            "local is this command itself, which runs no tasks; write cell, or wider, so that a "
            "worker may"
        )
        raise InvalidInput("scope", problem)


def parse_duration_s(text: str, field: str = "duration") -> float:
    """Seconds of `30`, `90s`, `5m`, `1.5h`, `30d`, `4w`. Raises InvalidInput.

    >>> parse_duration_s("1.5h")
    5400.0
    """
    match = _DURATION.fullmatch(text)
    if match is None:
        raise InvalidInput(field, f"{text!r} is not a duration; write it like 90s, 5m, 2h or 30d")
    number, unit = match.groups()
    duration_s = float(number) * _UNITS_S[unit]
    if duration_s == 0:
        raise InvalidInput(field, f"{text!r} is zero; write it like 90s, 5m, 2h or 30d")
    return duration_s


def parsed(field: str, text: str | None, parse: Callable[[str], int]) -> int | None:
    """None where nothing was written. Raises InvalidInput where `parse` raises ValueError."""
    try:
        return None if text is None else parse(text)
    except ValueError as problem:
        raise InvalidInput(field, str(problem)) from None


def quota_of(cpu_hours: str | None, gpu_hours: str | None, concurrent: int | None) -> Quota:
    """What a person limits use to. No hours of GPUs are good for work without one; none of the
    others would be good for anything. Raises InvalidInput."""
    from formation_p2p.trust.core.quota import Quota

    cpu = parsed("cpu-hours", cpu_hours, parse_milli)
    for field, limit in ("cpu-hours", cpu), ("concurrent", concurrent):
        if limit == 0:
            raise InvalidInput(field, "with 0 no task would ever run; write a higher number")
    return Quota(cpu, parsed("gpu-hours", gpu_hours, parse_milli), concurrent)


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitOptions:
    """What of this machine is offered, as a person wrote it."""

    cpu: str | None = option("--cpu", "CORES", "Cores to offer, such as 4 or 1.5.")
    memory: str | None = option("--memory", "SIZE", "Memory to offer, such as 8GiB.")
    storage: str | None = option("--storage", "SIZE", "Disk space to offer, such as 50GiB.")
    network: int | None = option(
        "--network",
        "MBPS",
        "The network's speed in megabits a second, where it cannot be measured; 1 by default.",
    )
    gpus: int | None = option("--gpus", "N", "GPUs to offer; 0 for none.")

    def limits(self) -> Limits:
        """Raises InvalidInput."""
        from formation_p2p.machine.core.capability import Limits

        return Limits(
            cpu_milli=parsed("cpu", self.cpu, parse_milli),
            memory_bytes=parsed("memory", self.memory, parse_bytes),
            storage_bytes=parsed("storage", self.storage, parse_bytes),
            network_mbps=self.network,
            gpu_count=self.gpus,
        )


def pairs_of(field: str, items: Iterable[str]) -> dict[str, str]:
    """`["a=1", "b="]` as `{"a": "1", "b": ""}`. Raises InvalidInput."""
    pairs: dict[str, str] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not key or not equals:
            raise InvalidInput(field, f"{item!r} is not a pair; write it like KEY=VALUE")
        if key in pairs:
            raise InvalidInput(field, f"{key} is given twice; give it once")
        pairs[key] = value
    return pairs


def read_invite(given: str) -> str:
    """The invite that `--join` names: itself, a file with it, a gateway's URL with a token, or `-`
    for stdin.

    Raises InvalidInput, which does not repeat what was given: it may be half a secret; LocalError
    where no gateway answers.
    """
    if given.startswith(("http://", "https://")):
        from formation_p2p.command.gateway_url import (
            invite_from,  # with urllib, which few need
        )

        return invite_from(given)
    from formation_p2p.records.core.pasted_text import cleaned

    if _PREFIX.match(cleaned(given)):
        return given
    try:
        return _pasted("invite", given, MAX_INVITE_CHARS)
    except FileNotFoundError:
        # What has these is no part of an invite, which is base64url, and so no secret.
        is_path = "." in given or "/" in given
        problem = f"{given} does not exist" if is_path else _NO_INVITE
        raise InvalidInput("join", problem) from None
    except (OSError, ValueError):
        raise InvalidInput("join", _NO_INVITE) from None


def read_pasted(what: str, given: str, max_chars: int) -> str:
    """What a person was sent, from a file, or from stdin for `-`.

    Raises InvalidInput, which does not repeat what was given: it may be a secret.
    """
    try:
        return _pasted(what, given, max_chars)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "this is not the name of a file"
        problem = f"no such file can be read ({reason})"
        raise InvalidInput(what, f"{problem}; name a file with it, or - for stdin") from error


def _pasted(what: str, given: str, max_chars: int) -> str:
    """Raises OSError; ValueError for what no file is called."""
    if given == "-":
        if sys.stdin.isatty():
            print(f"Paste the {what}, then press Enter and Ctrl-D.", file=sys.stderr)
        raw = sys.stdin.buffer.read(_MAX_CHAR_BYTES * max_chars)
    else:
        with Path(given).expanduser().open("rb") as file:
            raw = file.read(_MAX_CHAR_BYTES * max_chars)
    is_wide = raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return raw.decode("utf-16" if is_wide else "utf-8", errors="replace")[:max_chars]


def home_of(home: Path | None, join: str | None, name: str | None = None) -> Home:
    """The home folder, after joining the network of an invite if there is one; with the name for
    its nodes, if one is given.

    Raises InvalidInput, LocalError.
    """
    from formation_p2p.machine.home import Home

    found = Home(home)
    if join is not None:
        from formation_p2p.trust.core.network import parse_invite

        found.join(parse_invite(read_invite(join)))
    if name is not None:
        found.rename(name)
    return found


def folder_of(home: Path | None, join: str | None) -> Path:
    """As `home_of`: where it is, without looking into it unless there is an invite."""
    return home_path(home) if join is None else home_of(home, join).path


def learn_peers(home: Path, kwargs: Mapping[str, object] | None = None) -> None:
    """The names of peers that the nodes of a home have met: before options are read, where these
    have hints, which may name peers."""
    if kwargs is None or kwargs.get("hints"):
        from formation_p2p.state.member_file import learn_names

        learn_names(home)


def kept_charter(place: Home, network: Network) -> Charter | None:
    """The charter that a home's nodes go by, if there is one."""
    if not (place.path / "charter").exists():
        return None  # to read one takes modules that few commands need
    from formation_p2p.state.charter_file import CharterFile

    signed = CharterFile(place.path, network).load()
    return None if signed is None else signed.charter


def require(home: Path, right: Right, *, driver: str | None = None, priority: int = 0) -> None:
    """Check that the home's own grant gives a right, before another peer refuses it.

    Raises Unauthorized; LocalError where the home is in no network.
    """
    from formation_p2p.command.words import say
    from formation_p2p.machine.home import Home, joined_network
    from formation_p2p.trust.core.grants import check

    place = Home(home)
    network = joined_network(place)
    charter = kept_charter(place, network)
    denied = check(
        network.grant,
        network.root_public_key,
        place.identity().peer_id,
        right,
        time.time(),
        driver=driver,
        priority=priority,
        charter=charter,
    )
    if denied is None:
        return
    if charter is None or charter.bans(place.identity().peer_id, network.terms.invitation) is None:
        raise Unauthorized(f"{denied}; ask for an invite that allows it")
    # Of a later version it hears once it runs.
    say(f"formation: {denied}; a later version may not: it is asked for")
