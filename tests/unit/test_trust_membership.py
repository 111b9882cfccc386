"""Deny by default: who may work, and who may have what run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from biscuit_auth import Biscuit

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.refusals import Denied
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core import grants
from formation_p2p.trust.core.grant_form import GrantForm
from formation_p2p.trust.core.grant_token import open_token
from formation_p2p.trust.core.grants import Right, Rights, issue
from formation_p2p.trust.core.membership import Membership
from tests.support.stories import ALICE, BOB, MALLORY, NEEDS, at, identity

ROOT = identity("root")
MEMBERSHIP = Membership(ROOT.public_key)
NOW = at(0)
EXPIRY = int(NOW.unix_s) + 3600
LATER = Moment(7200, NOW.unix_s + 7200)


def grant(of: Contact, *may: Right, priority: int = 100) -> bytes:
    drivers = frozenset({"process"})
    rights = Rights(EXPIRY, frozenset(may) or frozenset(Right), drivers, priority)
    return issue(ROOT, rights, of.peer_id)


def profile(of: Contact, shown: bytes) -> Profile:
    capability = Capability(1000, 2**30)
    return Profile(
        peer_id=of.peer_id,
        sequence=1,
        issued_unix_s=int(NOW.unix_s),
        expires_unix_s=EXPIRY,
        capability=capability,
        capacity=idle(capability),
        grant=shown,
    )


def test_a_worker_with_a_grant_may_work_until_it_expires() -> None:
    alice = profile(ALICE, grant(ALICE))
    assert MEMBERSHIP.denies_work(alice, NOW) is None
    assert isinstance(MEMBERSHIP.denies_work(alice, LATER), Denied)


def test_nobody_else_may_work() -> None:
    for shown in (b"", b"\x00", grant(ALICE), grant(MALLORY, Right.SUBMIT)):
        assert isinstance(MEMBERSHIP.denies_work(profile(MALLORY, shown), NOW), Denied)
    forged = issue(identity("another root"), Rights(EXPIRY), MALLORY.peer_id)
    assert isinstance(MEMBERSHIP.denies_work(profile(MALLORY, forged), NOW), Denied)


def test_a_scheduler_may_have_run_what_its_grant_allows_and_no_more() -> None:
    shown = grant(BOB, priority=5)
    assert MEMBERSHIP.denies_submit(shown, BOB.peer_id, NEEDS, 5, NOW) is None
    python = replace(NEEDS, driver="python")
    for denied in (
        MEMBERSHIP.denies_submit(shown, BOB.peer_id, NEEDS, 6, NOW),
        MEMBERSHIP.denies_submit(shown, BOB.peer_id, python, 0, NOW),
        MEMBERSHIP.denies_submit(shown, BOB.peer_id, NEEDS, 0, LATER),
        MEMBERSHIP.denies_submit(shown, MALLORY.peer_id, NEEDS, 0, NOW),
        MEMBERSHIP.denies_submit(b"", BOB.peer_id, NEEDS, 0, NOW),
        MEMBERSHIP.denies_submit(grant(BOB, Right.WORK), BOB.peer_id, NEEDS, 0, NOW),
    ):
        assert isinstance(denied, Denied)
        assert denied.right == "submit"


def test_whoever_may_do_anything_here_belongs_and_nobody_else() -> None:
    for rights in ((Right.SUBMIT,), (Right.WORK,), tuple(Right)):
        assert MEMBERSHIP.denies_membership(grant(BOB, *rights), BOB.peer_id, NOW) is None
    forged = issue(identity("another root"), Rights(EXPIRY), BOB.peer_id)
    for shown in (b"", b"\x00", grant(ALICE), forged):
        assert isinstance(MEMBERSHIP.denies_membership(shown, BOB.peer_id, NOW), Denied)
    assert isinstance(MEMBERSHIP.denies_membership(grant(BOB), BOB.peer_id, LATER), Denied)


def test_what_is_no_grant_here_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It costs a millisecond where it has eight blocks, and any stranger can send it."""
    read: list[bytes] = []

    def counted(form: GrantForm, root_id: bytes) -> Biscuit:
        read.append(form.raw)
        return opened(form, root_id)

    opened = open_token
    monkeypatch.setattr(grants, "open_token", counted)
    forged = issue(identity("another root"), Rights(EXPIRY), MALLORY.peer_id)
    denied = MEMBERSHIP.denies_membership(forged, MALLORY.peer_id, NOW)
    assert str(denied).startswith("not allowed to belong: the grant is refused")
    assert read == [forged]
