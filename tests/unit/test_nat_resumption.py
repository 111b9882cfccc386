"""What two sides of a session say to each other, and how they count."""

import pytest

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB
from formation_p2p.reach.core.circuit_messages import UNLIMITED, Limit
from formation_p2p.reach.core.resumption import (
    LEAST_CIRCUIT_BYTES,
    MAX_CIRCUIT_BYTES,
    MAX_MESSAGE_BYTES,
    Allowance,
    Ledger,
    Resume,
    Resumed,
    encode_resume,
    encode_resumed,
    parse_resume,
    parse_resumed,
)

RESUME = Resume(bytes(range(16)), 2**40, 2**63, is_cut=True)
RESUMED = Resumed(2**40, 2**63)


def test_what_is_said_is_read() -> None:
    assert parse_resume(encode_resume(RESUME)) == RESUME
    assert parse_resumed(encode_resumed(RESUMED)) == RESUMED
    assert max(len(encode_resume(RESUME)), len(encode_resumed(RESUMED))) == MAX_MESSAGE_BYTES


@pytest.mark.parametrize("cut", [0, 1, 15, 100])
def test_what_is_too_short_or_too_long_is_refused(cut: int) -> None:
    with pytest.raises(ProtocolViolation):
        parse_resume((encode_resume(RESUME) + b"more")[:cut] + bytes(cut // 100))
    with pytest.raises(ProtocolViolation):
        parse_resumed((encode_resumed(RESUMED) + b"more")[:cut])


def test_what_was_sent_is_kept_until_it_has_arrived() -> None:
    ledger = Ledger()
    ledger.write(b"abcdef")
    assert ledger.next(4) == b"abcd"
    ledger.sent(4)
    assert ledger.next(4) == b"ef"
    assert ledger.unsent_bytes == 2
    ledger.arrived(3)
    assert (ledger.unsent_bytes, ledger.next(9)) == (2, b"ef")
    ledger.send_again()
    assert (ledger.sent_bytes, ledger.unsent_bytes, ledger.next(9)) == (3, 3, b"def")


def test_what_is_to_be_sent_again_may_have_come_after_all() -> None:
    ledger = Ledger()
    ledger.write(b"abcdef")
    ledger.sent(6)
    ledger.arrived(2)
    ledger.send_again()
    ledger.arrived(5)
    assert (ledger.sent_bytes, ledger.next(9)) == (5, b"f")


@pytest.mark.parametrize("count", [1, 7])
def test_a_peer_that_has_what_it_cannot_have_is_refused(count: int) -> None:
    ledger = Ledger()
    ledger.write(b"abcdef")
    ledger.sent(6)
    ledger.arrived(2)
    with pytest.raises(ProtocolViolation):
        ledger.arrived(count)


def test_the_next_circuit_is_due_before_the_relay_cuts_this_one() -> None:
    allowance = Allowance.of(Limit(120, 128 * KIB), 1000.0)
    assert (allowance.left_bytes, allowance.is_due(1089.9)) == (96 * KIB, False)
    assert allowance.is_due(1090.0)
    allowance.carried_bytes = 80 * KIB
    assert allowance.is_due(1000.0)
    assert allowance.left_bytes == 16 * KIB
    allowance.carried_bytes = 100 * KIB  # what came counts too
    assert allowance.left_bytes == 0


def test_a_circuit_carries_no_more_than_is_kept_of_it() -> None:
    allowance = Allowance.of(UNLIMITED, 0.0)
    assert allowance.most_bytes == MAX_CIRCUIT_BYTES * 3 // 4
    assert not allowance.is_due(1e9)
    assert Allowance.of(Limit(None, 1), 0.0).most_bytes == LEAST_CIRCUIT_BYTES * 3 // 4
