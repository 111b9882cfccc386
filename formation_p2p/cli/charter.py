"""`formation charter`: the rules that the members of a network make together."""

from __future__ import annotations

import asyncio
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from formation_p2p.cli import flags
from formation_p2p.cli.charter_edit import Edits
from formation_p2p.cli.command import CommandGroup
from formation_p2p.cli.flags import argument, option
from formation_p2p.cli.logs import logged
from formation_p2p.cli.words import Json, counted, printable, put, say
from formation_p2p.core.errors import BadRecord, InvalidInput, LocalError
from formation_p2p.core.identity import Identity
from formation_p2p.core.trust.charter import Charter, is_invitation
from formation_p2p.core.trust.charter_diff import changes, lines
from formation_p2p.core.trust.charter_text import charter_text, parse_charter_text
from formation_p2p.core.trust.network import Network
from formation_p2p.core.trust.root_keys import KeySet
from formation_p2p.core.trust.signed_charter import (
    SignedCharter,
    draft,
    missing,
    open_charter,
    root_keys,
    sign,
)
from formation_p2p.host.machine.home import Home, joined_network
from formation_p2p.host.names import peer_meant
from formation_p2p.host.storage.charter_file import CharterFile
from formation_p2p.host.storage.member_file import learn_names

if TYPE_CHECKING:
    from collections.abc import Iterable

# A proposal with all signatures takes 20 KiB as text.
_MAX_CHARS: Final = 64 * 1024
_NONE: Final = "this network has no charter yet; make one: formation charter init"

app: Final = CommandGroup(
    "charter", help="The rules that the members of a network make.", no_args_is_help=True
)

INIT_EPILOG: Final = """
\b
Examples:
  formation charter init --member acme=2 --member beta=1
  formation charter init --signer 12D3KooW… --signer 12D3KooW… --threshold 2
"""
SIGN_EPILOG: Final = """
\b
Examples:
  formation charter ban 12D3KooW… > ban.txt      where the first signer is
  formation charter sign ban.txt                 where the second one is

A charter counts once the keys of the version before it, and its own, have signed it as often as
their thresholds say. Who signs last hands it to the network.
"""

MEMBER: Final = option("--member", "ORG=SHARE", "An organisation, and its share. Repeatable.")
REGION: Final = option(
    "--region", "NAME=WHO,…", "Organisations, invitations and peers in a region. Repeatable."
)
SIGNER: Final = option("--signer", "PEER", "The id of a node that signs charters. Repeatable.")
INVITER: Final = option("--inviter", "PEER", "A node that may renew grants. Repeatable.")
THRESHOLD: Final = option("--threshold", "N", "How many signers make the next version.", type=int)
EXPIRES: Final = option("--expires", "TIME", "For how long it holds: 90d, 52w; 365d by default.")
CPU_HOURS: Final = option("--cpu-hours", "N", "Core-hours a month, for grants without a quota.")
GPU_HOURS: Final = option("--gpu-hours", "N", "GPU-hours a month, for grants without a quota.")
CONCURRENT: Final = option("--concurrent", "N", "Tasks at once, likewise.", type=int)
MACHINES: Final = option(
    "--machines", "N", "Machines for each invitation without a bound.", type=int
)
SCOPE: Final = option("--scope", "SCOPE", "Who may read data without a rule of its own: org, …")


@app.command(epilog=INIT_EPILOG)
@logged
def init(
    member: list[str] | None = MEMBER,
    region: list[str] | None = REGION,
    signer: list[str] | None = SIGNER,
    threshold: int | None = THRESHOLD,
    inviter: list[str] | None = INVITER,
    expires: str | None = EXPIRES,
    cpu_hours: str | None = CPU_HOURS,
    gpu_hours: str | None = GPU_HOURS,
    concurrent: int | None = CONCURRENT,
    machines: int | None = MACHINES,
    scope: str | None = SCOPE,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Make the first charter of a network, where its root key is.

    Without --signer the root key signs later versions too. With some, they do, as many together as
    --threshold says; the root key signs this one.
    """
    place = _Place(home)
    if place.known is not None:
        problem = f"version {place.known.version} counts already"
        raise InvalidInput("charter", f"{problem}; change it: formation charter propose")
    root = place.root
    edits = Edits(
        members=tuple(member or ()),
        regions=tuple(region or ()),
        inviters=tuple(inviter or ()),
        expires=expires,
        cpu_hours=cpu_hours,
        gpu_hours=gpu_hours,
        concurrent=concurrent,
        machines=machines,
        scope=scope,
    )
    keys = root
    if signer:
        first = Edits(signers=tuple(signer), threshold=threshold or 1)
        keys = first.keys_alone()
    elif threshold is not None:
        raise InvalidInput("threshold", "it counts signers; name them: --signer PEER, for each")
    now = int(time.time())
    blank = Charter(
        version=1,
        network=place.network.network_id,
        keys=keys,
        issued_unix_s=now,
        expires_unix_s=now + 1,
    )
    _go_on(place, draft(edits.apply(blank), root), as_json=as_json)


@app.command()
@logged
def propose(
    member: list[str] | None = MEMBER,
    no_member: list[str] | None = option("--no-member", "ORG", "Take one out. Repeatable."),
    region: list[str] | None = REGION,
    no_region: list[str] | None = option("--no-region", "NAME", "Take one out. Repeatable."),
    signer: list[str] | None = SIGNER,
    no_signer: list[str] | None = option("--no-signer", "PEER", "Take one out. Repeatable."),
    threshold: int | None = THRESHOLD,
    inviter: list[str] | None = INVITER,
    no_inviter: list[str] | None = option("--no-inviter", "PEER", "Take one out. Repeatable."),
    ban: list[str] | None = option("--ban", "PEER|INVITATION", "Ban it. Repeatable."),
    no_ban: list[str] | None = option("--no-ban", "PEER|INVITATION", "Allow it again. Repeatable."),
    expires: str | None = EXPIRES,
    cpu_hours: str | None = CPU_HOURS,
    gpu_hours: str | None = GPU_HOURS,
    concurrent: int | None = CONCURRENT,
    machines: int | None = MACHINES,
    scope: str | None = SCOPE,
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Make the next version: what is not named stays as it is.

    Signs it with the keys that are here, and prints it for the other signers, or hands it to the
    network where that is enough.
    """
    place = _Place(home)
    edits = Edits(
        members=tuple(member or ()),
        no_members=tuple(no_member or ()),
        regions=tuple(region or ()),
        no_regions=tuple(no_region or ()),
        signers=tuple(signer or ()),
        no_signers=tuple(no_signer or ()),
        inviters=tuple(inviter or ()),
        no_inviters=tuple(no_inviter or ()),
        bans=place.meant(ban or ()),
        no_bans=place.meant(no_ban or ()),
        threshold=threshold,
        expires=expires,
        cpu_hours=cpu_hours,
        gpu_hours=gpu_hours,
        concurrent=concurrent,
        machines=machines,
        scope=scope,
    )
    _go_on(place, place.next_version(edits), as_json=as_json)


@app.command()
@logged
def ban(
    name: str = argument("PEER|INVITATION", "As `formation members` shows it.", default=...),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Ban a peer, or all that was made of an invitation.

    Every worker, gate and holder of records refuses it once the charter counts, and its leases end
    at their next renewal. As `propose --ban`.
    """
    place = _Place(home)
    edits = Edits(bans=place.meant((name,)), expires=place.time_left())
    _go_on(place, place.next_version(edits), as_json=as_json)


@app.command("sign", epilog=SIGN_EPILOG)
@logged
def sign_it(
    given: str = argument(
        "FILE|-", "A proposal that a signer printed, or - for stdin.", default=...
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Sign a proposal with the keys that are here, after it has shown what that changes."""
    place = _Place(home)
    _go_on(place, place.proposal(given), as_json=as_json)


@app.command()
@logged
def show(
    given: str = argument("FILE|-", "A proposal; else the charter that counts.", default=""),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the charter of the network, or a proposal."""
    place = _Place(home)
    shown = place.proposal(given) if given else place.known
    if shown is None:
        raise InvalidInput("charter", _NONE)
    if as_json:
        put(_document(shown))
        return
    print(f"version {shown.version} of the charter of {shown.charter.network.hex()[:12]}")
    for line in lines(shown.charter):
        print(f"  {printable(line)}")
    if shown.charter.is_over(time.time()):
        say("it has expired: its bans go on, its regions and shares do not; propose the next one")


@app.command()
@logged
def diff(
    given: str = argument("FILE|-", "A proposal, or - for stdin.", default=...),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show what a proposal changes."""
    place = _Place(home)
    proposal = place.proposal(given)
    found = changes(place.charter, proposal.charter)
    if as_json:
        put({"version": proposal.version, "changes": found, "missing": place.missing(proposal)})
        return
    for line in found:
        print(printable(line))


class _Place:
    """A home, its network, and the charter that counts there. Raises LocalError."""

    def __init__(self, home: Path | None) -> None:
        self.home = Home(home)
        self.network: Network = joined_network(self.home)
        self.file = CharterFile(self.home.path, self.network)
        self.known = self.file.load()

    @property
    def root(self) -> KeySet:
        return root_keys(self.known, self.network.root_public_key)

    @property
    def charter(self) -> Charter | None:
        return None if self.known is None else self.known.charter

    @property
    def trusted(self) -> KeySet:
        """Who has to sign the next version."""
        return self.root if self.known is None else self.known.charter.keys

    def own_keys(self) -> list[Identity]:
        """Those that are here."""
        issuer = self.home.issuer()
        return [self.home.identity(), *([] if issuer is None else [issuer[0]])]

    def meant(self, names: Iterable[str]) -> tuple[str, ...]:
        """Peers by their ids, also those that were given by name."""
        learn_names(self.home.path)
        found = []
        for name in names:
            peer_id = None if is_invitation(name) else peer_meant(name, field="ban")
            if peer_id is None and not is_invitation(name):
                hint = "copy its id or its invitation from `formation members --json`"
                raise InvalidInput("ban", f"no member known here is {name!r}; {hint}")
            found.append(peer_id or name)
        return tuple(found)

    def time_left(self) -> str:
        """What is left of the charter that counts: a ban is no vote for a longer one."""
        if self.known is None:
            raise InvalidInput("charter", _NONE)
        return f"{max(int(self.known.charter.expires_unix_s - time.time()), 86_400)}s"

    def next_version(self, edits: Edits) -> SignedCharter:
        if self.known is None:
            raise InvalidInput("charter", _NONE)
        version = self.known.version + 1
        made = edits.apply(replace(self.known.charter, version=version))
        return draft(made, self.root, self.known)

    def proposal(self, given: str) -> SignedCharter:
        """Raises InvalidInput."""
        proposal = parse_charter_text(_read(given))
        if proposal.charter.network != self.network.network_id:
            raise InvalidInput("charter", "it is of another network than this home; see --home")
        if self.known is not None and proposal.version < self.known.version:
            problem = f"it is version {proposal.version}, and {self.known.version} counts"
            raise InvalidInput("charter", f"{problem}; propose it again")
        return proposal

    def missing(self, proposal: SignedCharter) -> dict[str, int]:
        return missing(proposal, self.trusted)


def _go_on(place: _Place, proposal: SignedCharter, *, as_json: bool) -> None:
    """Sign with the keys that are here; then hand it to the network, or to the next signer."""
    wanted = {*place.trusted.keys, *proposal.charter.keys.keys}
    signed, used = proposal, 0
    for key in place.own_keys():
        if key.public_key in wanted:
            signed, used = sign(signed, key), used + 1
    lacking = place.missing(signed)
    if used == 0:
        named = ", ".join(sorted(place.trusted.signers()))
        problem = f"no key of {place.home.path} may sign it"
        raise InvalidInput("charter", f"{problem}; do this where one of these is: {named}")
    if not as_json:
        for line in changes(place.charter, proposal.charter):
            say(printable(line))
    text = charter_text(signed)
    if lacking:
        if as_json:
            put({"version": signed.version, "missing": lacking, "charter": text})
            return
        print(text)
        left = " and ".join(f"{count} {of}" for of, count in lacking.items())
        say(f"it lacks signatures: {left}; have another signer run: formation charter sign -")
        return
    _adopt(place, signed)
    holders = asyncio.run(_hand_on(place, signed))
    if as_json:
        put({"version": signed.version, "missing": {}, "holders": holders, "charter": text})
        return
    print(
        f"version {signed.version} of the charter counts; {counted(holders, 'peer')} had it at once"
    )
    if holders == 0:
        say("no peer took it yet: it goes out as soon as a node of this home reaches one")


def _adopt(place: _Place, signed: SignedCharter) -> None:
    """Raises InvalidInput; LocalError."""
    root, network_id = place.network.root_public_key, place.network.network_id
    try:
        known = place.known
        if known is None or known.digest != signed.digest:
            open_charter(signed.raw, root, network_id, known, time.time())
    except BadRecord as error:
        raise InvalidInput("charter", f"it is refused: {error}") from error
    place.file.write(signed)


async def _hand_on(place: _Place, signed: SignedCharter) -> int:
    from formation_p2p.cli.local.link import reach

    try:
        async with reach(place.home.path) as node:
            return await node.offer_charter(signed.raw)
    except LocalError as error:
        say(f"it is not handed on: {error}")
        return 0


def _read(given: str) -> str:
    if given == "-":
        return sys.stdin.read(_MAX_CHARS)
    try:
        with Path(given).expanduser().open(encoding="ascii", errors="replace") as file:
            return file.read(_MAX_CHARS)
    except OSError as error:
        problem = f"{given} cannot be read ({error.strerror})"
        raise InvalidInput("charter", f"{problem}; name a file with a proposal, or -") from error


def _document(signed: SignedCharter) -> Json:
    charter = signed.charter
    return {
        "version": charter.version,
        "network_id": charter.network.hex(),
        "issued_unix_s": charter.issued_unix_s,
        "expires_unix_s": charter.expires_unix_s,
        "threshold": charter.threshold,
        "signers": list(charter.signers),
        "members": {each.org: each.share for each in charter.members},
        "regions": {each.name: sorted(each.holders) for each in charter.regions},
        "banned_peers": sorted(charter.banned_keys),
        "banned_invitations": sorted(charter.banned_invitations),
        "inviters": sorted(charter.inviters),
        "machines": charter.machines,
        "scope": str(charter.scope),
    }
