"""Who may do what in a network: grants, which are Biscuit tokens.

The network's root key issues a grant. Whoever holds one can narrow it and hand it on, offline,
by appending a block; nobody can widen it. A grant that names no peer is a bearer secret: it
belongs in a join string. What a node shows to others is bound to its own peer id first, so
that a copy is worth nothing to anyone else, and an unbound one is refused.

A token is read, never run. Biscuit's Datalog lets every holder append rules of his own, and the
engine's limits do not hold inside one rule: a token of 785 bytes kept biscuit-python 0.4.0 busy
for 26 s under a limit of 20 ms. So a grant may hold only the statements that this module writes,
each of which has one printed form, and any other token is refused. For these, Biscuit's own
evaluation gives the same answer (the tests compare them).

Source: Biscuit specification, "Semantics"; Birgisson et al., "Macaroons", 2014, for attenuation.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Final

from biscuit_auth import (
    Biscuit,
    BiscuitBlockError,
    BiscuitBuilder,
    BiscuitValidationError,
    BlockBuilder,
    PrivateKey,
    PublicKey,
)

from formation_p2p.errors import InvalidInput
from formation_p2p.identity import Identity, PeerId, parse_peer_id
from formation_p2p.records.profile import MAX_GRANT_BYTES
from formation_p2p.refusals import Denied
from formation_p2p.resources.bounds import MAX_DRIVERS, check_amount, check_name

# Issued, handed on a few times, bound. Each costs its checker one signature (60 us).
MAX_BLOCKS: Final = 8
# Priorities go from 0, which every grant to submit allows, to this.
MAX_PRIORITY: Final = 100
# The year 5138: eleven digits, and past anyone's plans.
MAX_EXPIRY_UNIX_S: Final = 99_999_999_999


class Right(StrEnum):
    SUBMIT = "submit"  # have others run one's tasks
    WORK = "work"  # announce a profile, and run the tasks of others


@dataclass(frozen=True, slots=True)
class Rights:
    """What a grant allows, until when. `drivers` is None for any. Raises InvalidInput.

    Drivers and priority limit what may be submitted.
    """

    expires_unix_s: int
    may: frozenset[Right] = frozenset(Right)
    drivers: frozenset[str] | None = None
    max_priority: int = MAX_PRIORITY

    def __post_init__(self) -> None:
        check_amount("expires", self.expires_unix_s, 0, MAX_EXPIRY_UNIX_S)
        check_amount("priority", self.max_priority, 0, MAX_PRIORITY)
        _check_drivers(self.drivers or frozenset())

    def allow_driver(self, driver: str) -> bool:
        return self.drivers is None or driver in self.drivers


def issue(root: Identity, rights: Rights, peer_id: PeerId | None = None) -> bytes:
    """A new grant, signed with the network's root key; for one peer, or for whoever holds it.

    Raises InvalidInput.
    """
    if not rights.may:
        raise InvalidInput("rights", "the grant would allow nothing; name submit, work or both")
    builder = BiscuitBuilder()
    for right in sorted(rights.may):
        builder.add_code("right({right})", {"right": right.value})
    builder.merge(
        _restrictions(peer_id, None, rights.drivers, rights.max_priority, rights.expires_unix_s)
    )
    private_key = PrivateKey(f"ed25519-private/{root.seed.hex()}")
    return bytes(builder.build(private_key).to_bytes())


def attenuate(
    grant: bytes,
    root_public_key: bytes,
    *,
    peer_id: PeerId | None = None,
    may: Right | None = None,
    drivers: frozenset[str] | None = None,
    max_priority: int | None = None,
    expires_unix_s: int | None = None,
) -> bytes:
    """A narrower grant, made without the root's private key. What is None stays as it is.

    The result allows what both the old grant and the new limits allow, however they were
    written. Raises InvalidInput.
    """
    _read(grant, root_public_key)  # what nobody would accept is not worth narrowing
    block = _restrictions(peer_id, may, drivers, max_priority, expires_unix_s)
    narrower = bytes(_open(grant, root_public_key).append(block).to_bytes())
    _read(narrower, root_public_key)  # it may have grown past a bound
    return narrower


def bind(grant: bytes, root_public_key: bytes, peer_id: PeerId) -> bytes:
    """The same grant for one peer only; unchanged where it is that already.

    Raises InvalidInput, also where the grant is bound to another peer.
    """
    bound_to = _read(grant, root_public_key).bound_to
    if bound_to == {peer_id}:
        return grant
    if bound_to:
        others = " and ".join(sorted(bound_to))
        raise InvalidInput("grant", f"it is for {others} only; ask for one for {peer_id}")
    return attenuate(grant, root_public_key, peer_id=peer_id)


def rights_of(grant: bytes, root_public_key: bytes) -> Rights:
    """What a grant allows whoever may use it. Raises InvalidInput where it is none here."""
    return _read(grant, root_public_key).rights


def check(
    grant: bytes,
    root_public_key: bytes,
    peer_id: PeerId,
    right: Right,
    now_unix_s: float,
    *,
    driver: str | None = None,
    priority: int = 0,
) -> Rights | Denied:
    """Whether `peer_id`, which showed `grant`, may do this now. Denied unless all of it holds.

    That the peer is who it says has been proved before: by the connection's handshake, or by
    the signature around the grant. `driver` None asks of none in particular; what is dispatched
    later is to be held against the Rights returned.
    """
    if not grant:
        return Denied(right.value, "no grant was shown")
    try:
        terms = _read(grant, root_public_key)
    except InvalidInput as error:
        return Denied(right.value, f"the grant is refused: {error.problem}")
    rights = terms.rights
    why = None
    if not terms.bound_to:
        why = "the grant is bound to no peer; a peer binds it to itself before it shows it"
    elif terms.bound_to != {peer_id}:
        why = "the grant is bound to another peer"
    elif rights.expires_unix_s <= now_unix_s:
        why = (
            f"the grant expired {int(now_unix_s - rights.expires_unix_s)} s ago; ask for a new one"
        )
    elif right not in rights.may:
        why = f"the grant gives no right to {right}"
    elif right is Right.SUBMIT:
        why = _why_not_submit(rights, driver, priority)
    return rights if why is None else Denied(right.value, why)


def _why_not_submit(rights: Rights, driver: str | None, priority: int) -> str | None:
    if driver is not None and not rights.allow_driver(driver):
        allowed = ", ".join(sorted(rights.drivers or ()))
        return f"the grant allows the drivers {allowed}, not {driver or 'an unnamed one'}"
    if priority > rights.max_priority:
        return f"the grant allows priorities up to {rights.max_priority}, not {priority}"
    return None


def _check_drivers(drivers: frozenset[str]) -> None:
    if len(drivers) > MAX_DRIVERS:
        raise InvalidInput("drivers", f"there are more than {MAX_DRIVERS}; leave some out")
    for driver in drivers:
        check_name("drivers", driver)


# -- the statements of a grant, as they are written and as Biscuit prints them --------------


@dataclass(frozen=True, slots=True)
class _Terms:
    rights: Rights
    bound_to: frozenset[str]


_RIGHT: Final = re.compile(r'right\("(submit|work)"\)')
_PEER: Final = re.compile(r'check if peer\("([1-9A-HJ-NP-Za-km-z]{1,64})"\)')
_MAY: Final = re.compile(r'check if operation\("(submit|work)"\)')
_EXPIRY: Final = re.compile(r"check if time\(\$time\), \$time < ([0-9]{1,11})")
_PRIORITY: Final = re.compile(
    r'check if operation\("work"\) or priority\(\$priority\), \$priority <= ([0-9]{1,3})'
)
_DRIVERS: Final = re.compile(
    r'check if operation\("work"\) or driver\(\$driver\), '
    r'\{("[a-z0-9_-]{1,32}"(?:, "[a-z0-9_-]{1,32}")*)\}\.contains\(\$driver\)'
)


def _restrictions(
    peer_id: PeerId | None,
    may: Right | None,
    drivers: frozenset[str] | None,
    max_priority: int | None,
    expires_unix_s: int | None,
) -> BlockBuilder:
    """Values go in as parameters, after they were checked; the Datalog itself is constant."""
    block = BlockBuilder("")
    if peer_id is not None:
        try:
            parse_peer_id(peer_id)
        except ValueError as error:
            raise InvalidInput("peer", str(error)) from error
        block.add_code("check if peer({peer})", {"peer": peer_id})
    if may is not None:
        block.add_code("check if operation({may})", {"may": may.value})
    if expires_unix_s is not None:
        check_amount("expires", expires_unix_s, 0, MAX_EXPIRY_UNIX_S)
        block.add_code("check if time($time), $time < {expires}", {"expires": expires_unix_s})
    if max_priority is not None:
        check_amount("priority", max_priority, 0, MAX_PRIORITY)
        block.add_code(
            'check if operation("work") or priority($priority), $priority <= {most}',
            {"most": max_priority},
        )
    if drivers is not None:
        _check_drivers(drivers)
        if not drivers:
            raise InvalidInput("drivers", "name at least one, or leave them open")
        block.add_code(
            'check if operation("work") or driver($driver), {drivers}.contains($driver)',
            {"drivers": set(drivers)},
        )
    return block


@lru_cache(maxsize=16_384)  # two signatures cost 150 us, and the same peers show the same grants
def _read(grant: bytes, root_public_key: bytes) -> _Terms:
    """Raises InvalidInput for all but a grant that this root issued and this module can read."""
    granted: set[str] = set()
    kept = {right.value for right in Right}
    bound_to: set[str] = set()
    expiries: list[int] = []
    priorities: list[int] = []
    drivers: list[frozenset[str]] = []
    for block, statement in _statements(_open(grant, root_public_key)):
        # A right counts in the root's own block alone: later ones are by whoever held the grant.
        if block == 0 and (match := _RIGHT.fullmatch(statement)):
            granted.add(match[1])
        elif match := _PEER.fullmatch(statement):
            bound_to.add(match[1])
        elif match := _MAY.fullmatch(statement):
            kept &= {match[1]}
        elif match := _EXPIRY.fullmatch(statement):
            expiries.append(int(match[1]))
        elif match := _PRIORITY.fullmatch(statement):
            priorities.append(int(match[1]))
        elif match := _DRIVERS.fullmatch(statement):
            drivers.append(frozenset(re.findall(r"[a-z0-9_-]+", match[1])))
        else:
            raise InvalidInput("grant", "it holds a statement that this version does not know")
    rights = Rights(
        min(expiries, default=0),
        frozenset(Right(right) for right in granted & kept),
        frozenset.intersection(*drivers) if drivers else None,
        min(priorities, default=0),
    )
    return _Terms(rights, frozenset(bound_to))


def _open(grant: bytes, root_public_key: bytes) -> Biscuit:
    """With every block's signature verified, from the root's on. Raises InvalidInput."""
    if len(grant) > MAX_GRANT_BYTES:
        raise InvalidInput("grant", f"{len(grant)} bytes; at most {MAX_GRANT_BYTES} are allowed")
    try:
        token = Biscuit.from_bytes(grant, PublicKey(f"ed25519/{root_public_key.hex()}"))
    except BiscuitValidationError as error:
        problem = "it is of another network, or was altered"
        raise InvalidInput("grant", problem) from error
    except BaseException as error:
        raise _unless_panic(error) from error
    if token.block_count() > MAX_BLOCKS:
        raise InvalidInput("grant", f"it was narrowed more than {MAX_BLOCKS - 1} times")
    return token


def _statements(token: Biscuit) -> Iterator[tuple[int, str]]:
    """Each statement of a token as Biscuit prints it, with the number of its block."""
    for block in range(token.block_count()):
        try:
            source = token.block_source(block)
        except BiscuitBlockError as error:
            raise InvalidInput("grant", "one of its blocks cannot be read") from error
        except BaseException as error:
            raise _unless_panic(error) from error
        yield from ((block, statement) for statement in source.split(";\n") if statement)


def _unless_panic(error: BaseException) -> BaseException:
    """What to raise for an error that biscuit-python does not declare. A panic of its Rust code
    is no Exception, and would pass every guard and end the node; here it costs the grant."""
    if type(error).__name__ == "PanicException":
        return InvalidInput("grant", "it could not be read")
    return error
