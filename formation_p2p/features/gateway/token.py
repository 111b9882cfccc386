"""Tokens for clients without a key of their own, such as curl and browsers.

A member makes one from its own grant and signs it with its own key: any gateway of the network can
check it by the network's root key, and keeps nothing of it. What it allows ends with itself, with
the grant, and at the bounds of the grant. Who has it may use it: it is a secret.

    fgt1_<base64url of an envelope of CBOR [network, name, expires, [right, …], grant]>

A grant that is bound to no peer, as an invite has it, is a token as well, in base64url. One that is
bound is none: its peer shows it to others.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.records.core import codec, envelope
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.grants import Right, check, read_grant
from formation_p2p.trust.core.network import Network, narrowed
from formation_p2p.trust.core.quota import UNLIMITED

PREFIX: Final = "fgt1_"
# What tells people which token it is.
MAX_NAME_CHARS: Final = 64
MAX_TOKEN_BYTES: Final = MAX_GRANT_BYTES + 1024
_DOMAIN: Final = "formation-gateway-token"
_TYPE: Final = b"/formation/gateway-token"
_MAX_UNIX_S: Final = 2**40
_NETWORK_ID_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class Token:
    """What a text said, its signature verified. `peer_id` is the member that made it."""

    peer_id: PeerId
    network_id: bytes
    name: str
    expires_unix_s: int
    may: frozenset[Right]
    grant: bytes = field(repr=False)

    def denied(
        self,
        network: Network,
        right: Right | None,
        now_unix_s: float,
        charter: Charter | None = None,
    ) -> str | None:
        """Why it does not allow this, for people. `right` None is what any member may. The
        gateway goes by the charter as all nodes do: by its bans, and by who may renew grants."""
        if self.network_id != network.network_id:
            return "the token is of another network"
        if self.expires_unix_s <= now_unix_s:
            return "the token has expired; make a new one: formation gateway --new-token 30d"
        if right is not None and right not in self.may:
            return f"the token gives no right to {right.value}"
        key = network.root_public_key
        refused = check(self.grant, key, self.peer_id, right, now_unix_s, charter=charter)
        return None if refused is None else str(refused)


@dataclass(frozen=True, slots=True)
class Bearer:
    """A grant that is bound to no peer."""

    grant: bytes = field(repr=False)

    def denied(
        self,
        network: Network,
        right: Right | None,
        now_unix_s: float,
        charter: Charter | None = None,
    ) -> str | None:
        """As that of a Token."""
        try:
            terms = read_grant(self.grant, network.root_public_key)
        except InvalidInput as error:
            return f"the token is refused: {error.problem}"
        if terms.bound_to is not None:
            return "the token is a grant of one peer, which others can see; make a token from it"
        banned = None if charter is None else charter.bans("", terms.invitation)
        if banned is not None:
            return banned
        if terms.rights.expires_unix_s <= now_unix_s:
            return "the token has expired; ask for a new one"
        if right is not None and right not in terms.rights.may:
            return f"the token gives no right to {right.value}"
        return None


def exceeds(token: Token | Bearer, network: Network, charter: Charter | None) -> str | None:
    """Why jobs may not be sent by it to a gateway with the grant of `network`: that is narrowed to
    the token's, but hours and leases would be counted for the gateway."""
    key = network.root_public_key
    theirs, ours = read_grant(token.grant, key), network.terms
    counted = {x.name for x in theirs.accounts if x.quota != UNLIMITED and not x.is_peer}
    if charter is not None and charter.quotas != UNLIMITED:
        counted.add(theirs.bound_to or theirs.invitation)
    if not counted <= {ours.bound_to, *(each.name for each in ours.accounts)}:
        return "the token's grant has a quota, which is counted elsewhere; submit as a member"
    if not narrowed(network.grant, key, token.grant):
        return "the token's grant and the gateway's make none together; submit as a member"
    return None


def make_token(
    identity: Identity, network: Network, may: frozenset[Right], expires_unix_s: int, name: str = ""
) -> str:
    """Raises InvalidInput where the member itself may not do all of it."""
    rights = network.rights
    if not may or not may <= rights.may:
        own = ", ".join(sorted(rights.may)) or "nothing"
        raise InvalidInput("rights", f"this node's grant allows {own}; name some of these")
    if len(name) > MAX_NAME_CHARS or not name.isprintable():
        raise InvalidInput("name", f"use at most {MAX_NAME_CHARS} characters that print")
    body = [network.network_id, name, expires_unix_s, sorted(may), network.grant]
    raw = envelope.seal(identity, _DOMAIN, _TYPE, codec.encode(body))
    return PREFIX + base64.urlsafe_b64encode(raw).decode().rstrip("=")


def grant_in(encoded: str) -> bytes:
    """Raises InvalidInput for all but base64url."""
    if len(encoded) > MAX_TOKEN_BYTES * 4 // 3 + 4:
        raise InvalidInput("token", "it is too long to be one; paste one token alone")
    try:
        return base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars="-_", validate=True)
    except ValueError:
        problem = "it is incomplete or was altered; paste all of it"
        raise InvalidInput("token", problem) from None


def read_token(text: str) -> Token | Bearer:
    """Raises InvalidInput for all but a token as it was made; its message does not repeat it."""
    encoded = text.removeprefix(PREFIX)
    if encoded == text:
        return Bearer(grant_in(text))
    try:
        raw = grant_in(encoded)
        peer_id, payload = envelope.open_envelope(raw, _DOMAIN, _TYPE, MAX_TOKEN_BYTES)
        match codec.decode(payload, MAX_TOKEN_BYTES):
            case [network_id, name, expires, may, grant]:
                return Token(
                    peer_id,
                    codec.take_bytes(network_id, "network", _NETWORK_ID_BYTES),
                    codec.take_text(name, "name", MAX_NAME_CHARS),
                    codec.take_int(expires, "expires", 0, _MAX_UNIX_S),
                    frozenset(Right(each) for each in codec.take_list(may, "rights", len(Right))),
                    codec.take_bytes(grant, "grant", MAX_GRANT_BYTES),
                )
            case _:
                raise ValueError("another shape")
    except (ValueError, FormationError) as error:
        raise InvalidInput("token", "it is incomplete or was altered; paste all of it") from error
