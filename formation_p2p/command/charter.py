"""`formation charter`: the rules that the members of a network make together."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from formation_p2p.command import flags
from formation_p2p.command.charter_edit import Edits, NextEdits
from formation_p2p.command.charter_place import NO_CHARTER, Place, go_on
from formation_p2p.command.command import CommandGroup, chosen
from formation_p2p.command.flags import argument, option
from formation_p2p.command.words import Json, printable, put, say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.trust.core.charter import Charter, changes, lines
from formation_p2p.trust.core.signed_charter import (
    SignedCharter,
    draft,
)

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


@app.command(epilog=INIT_EPILOG)
def init(edits: Edits, home: Path | None = flags.HOME, as_json: bool = flags.JSON) -> None:
    """Make the first charter of a network, where its root key is.

    Without --signer the root key signs later versions too. With some, they do, as many together as
    --threshold says; the root key signs this one.
    """
    place = Place(home)
    if place.known is not None:
        problem = f"version {place.known.version} counts already"
        raise InvalidInput("charter", f"{problem}; change it: formation charter propose")
    root = place.root
    if not edits.signers and edits.threshold is not None:
        raise InvalidInput("threshold", "it counts signers; name them: --signer PEER, for each")
    now = int(time.time())
    blank = Charter(
        version=1,
        network=place.network.network_id,
        keys=edits.keys_alone() if edits.signers else root,
        issued_unix_s=now,
        expires_unix_s=now + 1,
    )
    made = replace(edits, signers=None, threshold=None).apply(blank)
    go_on(place, draft(made, root), as_json=as_json)


@app.command()
def propose(edits: NextEdits, home: Path | None = flags.HOME, as_json: bool = flags.JSON) -> None:
    """Make the next version: what is not named stays as it is.

    Signs it with the keys that are here, and prints it for the other signers, or hands it to the
    network where that is enough.
    """
    place = Place(home)
    bans, allowed = place.meant(edits.bans, "ban"), place.meant(edits.no_bans, "no-ban")
    edits = replace(edits, bans=[*bans], no_bans=[*allowed])
    go_on(place, place.next_version(edits), as_json=as_json)


@app.command()
def ban(
    name: str = argument("PEER|INVITATION", "As `formation members` shows it.", default=...),
    with_invitation: bool = option(
        "--with-invitation",
        "",
        "Ban as well all that was made of the invitation by which the peer came.",
        default=False,
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Ban a peer, or all that was made of an invitation.

    Every worker, gate and holder of records refuses it once the charter counts, and its leases end
    at their next renewal. Who still has the invite comes back as another peer, unless that is
    banned too. As `propose --ban`.
    """
    place = Place(home)
    bans = place.with_invitation(name) if with_invitation else place.meant((name,), "ban")
    edits = chosen(Edits, bans=bans, expires_unix_s=place.end_of_a_ban_unix_s())
    go_on(place, place.next_version(edits), as_json=as_json)


@app.command("sign", epilog=SIGN_EPILOG)
def sign_it(
    given: str = argument(
        "FILE|-", "A proposal that a signer printed, or - for stdin.", default=...
    ),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Sign a proposal with the keys that are here, after it has shown what that changes."""
    place = Place(home)
    go_on(place, place.proposal(given), as_json=as_json)


@app.command()
def show(
    given: str = argument("FILE|-", "A proposal; else the charter that counts.", default=""),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show the charter of the network, or a proposal."""
    place = Place(home)
    shown = place.proposal(given) if given else place.known
    if shown is None:
        raise InvalidInput("charter", NO_CHARTER)
    if as_json:
        put(_document(shown))
        return
    print(f"version {shown.version} of the charter of {shown.charter.network.hex()[:12]}")
    for line in lines(shown.charter):
        print(f"  {printable(line)}")
    if shown.charter.is_over(time.time()):
        say("it has expired: its bans go on, its regions and shares do not; propose the next one")


@app.command()
def diff(
    given: str = argument("FILE|-", "A proposal, or - for stdin.", default=...),
    home: Path | None = flags.HOME,
    as_json: bool = flags.JSON,
) -> None:
    """Show what a proposal changes."""
    place = Place(home)
    proposal = place.proposal(given)
    found = changes(place.charter, proposal.charter)
    if as_json:
        put({"version": proposal.version, "changes": found, "missing": place.missing(proposal)})
        return
    for line in found:
        print(printable(line))


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
        "identities": charter.identities,
        "scope": str(charter.scope),
    }
