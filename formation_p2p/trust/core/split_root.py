"""A root that is split: a grant that some of its keys have signed, on its way to the others.

A request is what an invite would be, with signatures missing. Its holders pass it on by mail, as
they do a charter. Without a peer in it, it is a secret as the invite is that it becomes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.records.core.pasted_text import cleaned
from formation_p2p.trust.core.grant_form import Cosigned, read_form
from formation_p2p.trust.core.grants import (
    GrantTerms,
    Rights,
    issue,
    read_grant,
    read_terms,
    reissue,
)
from formation_p2p.trust.core.network import GrantText, Network
from formation_p2p.trust.core.root_keys import KeySet

_REQUEST: Final = GrantText("formation-request1:", "request")


@dataclass(frozen=True, slots=True)
class GrantRequest:
    """For the network that `root_id` names. Raises InvalidInput where what was signed so far is not
    good."""

    root_id: bytes
    gates: tuple[str, ...]
    grant: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _ = self.terms  # raises

    @property
    def terms(self) -> GrantTerms:
        """What is asked for."""
        return read_terms(read_form(self.grant), self.root_id)

    @property
    def _cosigned(self) -> Cosigned | None:
        return read_form(self.grant).cosigned

    @property
    def lacks(self) -> int:
        """How many more keys have to sign."""
        return 0 if self._cosigned is None else self._cosigned.lacks

    def may_sign(self, key: bytes) -> bool:
        """Whether a key is of the root, and has not signed."""
        split = self._cosigned
        if split is None or key not in split.keys.keys:
            return False
        return key not in (split.issuer, *(signer for signer, _ in split.signatures))

    def signed(self, key: Identity) -> GrantRequest:
        """With one more signature, or the same where that is none of use."""
        form, split = read_form(self.grant), self._cosigned
        if split is None or not split.lacks or not self.may_sign(key.public_key):
            return self
        signature = key.public_key, key.sign(form.message(self.root_id))
        signatures = tuple(sorted((*split.signatures, signature)))
        form = replace(form, cosigned=replace(split, signatures=signatures))
        return replace(self, grant=form.raw)

    def network(self) -> Network:
        """What it becomes. Raises InvalidInput while signatures are missing."""
        return Network(self.root_id, self.gates, self.grant)

    def text(self) -> str:
        return _REQUEST.text(self.root_id, self.gates, self.grant)


def request_of(
    keys: KeySet,
    here: Sequence[Identity],
    gates: tuple[str, ...],
    rights: Rights,
    peer_id: PeerId | None = None,
) -> GrantRequest:
    """A new one, signed with so many of the root's keys as are `here`. Raises InvalidInput."""
    request = GrantRequest(keys.root_id(), gates, issue(here[0], rights, peer_id, keys))
    return _signed_by(here, request)


def renewal_of(
    grant: bytes,
    root_id: bytes,
    here: Sequence[Identity],
    gates: tuple[str, ...],
    now_unix_s: float,
) -> GrantRequest:
    """One that renews the grant of a member, for as long as it was given for. Raises
    InvalidInput."""
    terms = read_grant(grant, root_id)
    if terms.rights.life is None or terms.is_cut or terms.bound_to is None:
        raise InvalidInput("grant", "it was given until its end alone; invite again")
    until_unix_s = terms.rights.life.end_unix_s(now_unix_s)
    made = reissue(here[0], grant, PeerId(terms.bound_to), until_unix_s)
    return _signed_by(here, GrantRequest(root_id, gates, made))


def _signed_by(here: Iterable[Identity], request: GrantRequest) -> GrantRequest:
    for key in here:
        request = request.signed(key)
    return request


def is_request(text: str) -> bool:
    return cleaned(text).startswith(_REQUEST.prefix)


def parse_request(text: str) -> GrantRequest:
    """Raises InvalidInput."""
    return _REQUEST.parse(text, GrantRequest)


def root_of(grant: bytes, root_id: bytes) -> KeySet:
    """The keys of a network's root, as a grant of it shows them. Raises InvalidInput."""
    split = read_form(grant).cosigned
    return KeySet(1, (root_id,)) if split is None else split.keys
