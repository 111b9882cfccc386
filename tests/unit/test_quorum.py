"""Quorums as people ask for them, the comparison of answers, and the arithmetic of ballots."""

import math
from collections.abc import Sequence
from decimal import Decimal

import cbor2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import TooClose, Unalike
from formation_p2p.core.units import GIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import Answer
from formation_p2p.jobs.core.quorum_ballot import Accepted, Ballot, NoQuorum, Open, tally
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.placement.core.task_options import TaskOptions, options_of
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.marks import marks_of, of_kinds
from formation_p2p.workload.core.comparers import (
    BYTES,
    CBOR,
    Own,
    SameValues,
    bytes_of,
    comparer_of,
    numbers,
    read_plain,
)
from formation_p2p.workload.core.process import ProcessResult
from formation_p2p.workload.core.quorum import Quorum, quorum_of
from formation_p2p.workload.core.scope import Place
from formation_p2p.workload.core.work import Task
from tests.support.placement_world import profile
from tests.support.stories import NEEDS, identity

NAN = float("nan")


# -- as people ask for them -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("2 of 3", Quorum(2, of=3)),
        ("2of3", Quorum(2, of=3)),
        ("2/3 same=cbor", Quorum(2, of=3, same=CBOR)),
        ("2 of 5 check=0.02", Quorum.adaptive(2, of=5, check=0.02)),
        ("3 of 5 same=numbers(1e-6) alike=arch+label.site apart=org", None),
        ("2 of 3 apart=none alike=none", Quorum(2, of=3, apart=())),
        ({"need": 2, "of": 3, "same": "cbor", "alike": "arch"}, None),
        (Quorum(2, of=3, same=numbers(1e-6, 1e-9)), None),
        ({"need": 2, "of": 3, "check": 1}, None),
        ("2 of 3 at_once=yes", Quorum(2, of=3, at_once=True)),
        ("2 of 3 at_once=no", Quorum(2, of=3)),
        ({"need": 2, "of": 3, "at_once": True}, Quorum(2, of=3, at_once=True)),
    ],
)
def test_what_is_written_is_read_and_printed_and_kept(given: object, meant: Quorum | None) -> None:
    read = quorum_of(given)
    assert read is not None
    assert read == (meant or read)
    assert quorum_of(str(read)) == read
    assert Quorum.unpack(cbor2.loads(cbor2.dumps(read.pack()))) == read
    options = options_of({"quorum": given, "needs": NEEDS})
    assert options.quorum == read
    assert TaskOptions.unpack(options.pack()) == options


@pytest.mark.parametrize(
    "wrong",
    [
        "two of three",
        "2 of 3 same=closely",
        "2 of 3 same=numbers(e)",
        "2 of 3 same=numbers(7)",
        "2 of 3 check=often",
        "2 of 3 check=0",
        "2 of 3 need=3",
        "2 of 3 color=red",
        "1 of 3",
        "4 of 3",
        "2 of 10",
        "2 of 3 alike=size",
        "2 of 3 apart=town",
        "2 of 3 at_once=always",
        "2 of 3 check=0.02 at_once=yes",
        {"need": 2},
        {"need": 2, "of": 3, "same": 7},
        {"need": 2, "of": 3, "check": True},
        {"need": 2, "of": 3, "apart": 7},
        7,
    ],
)
def test_what_is_not_one_is_refused_with_what_to_write(wrong: object) -> None:
    with pytest.raises(InvalidInput) as refused:
        options_of({"quorum": wrong})
    assert str(refused.value)


def test_a_quorum_is_not_made_of_anything_else() -> None:
    assert quorum_of(None) is None
    with pytest.raises(InvalidInput):
        Quorum.unpack([2, 3])
    with pytest.raises(InvalidInput, match="quorum"):
        TaskOptions(quorum="2 of 3")  # type: ignore[arg-type]


def test_a_quorum_of_an_earlier_version_is_read() -> None:
    """And one of which copies go out one after the other is kept as that had it."""
    assert Quorum.unpack([2, 3, "bytes", [], ["org"], None]) == Quorum(2, of=3, apart=("org",))
    assert len(Quorum(2, of=3).pack()) == 6
    with pytest.raises(InvalidInput):
        Quorum.unpack([2, 3, "bytes", [], ["org"], None, False])


def test_members_of_gangs_have_none() -> None:
    task = Task("job/0", NEEDS, b"", member=("gang", 0))
    with pytest.raises(InvalidInput, match="gang"):
        Job("job", (task,), options=TaskOptions(quorum=Quorum(2, of=3)))


def test_a_function_is_not_kept() -> None:
    quorum = Quorum(2, of=3, same=lambda one, other: one == other)
    with pytest.raises(InvalidInput, match="numbers"):
        quorum.pack()
    assert "own(" in str(quorum)
    assert comparer_of(max) == Own(max)
    assert Own(lambda one, other: abs(one - other) < 2).same(3, 4)


# -- what is the same -------------------------------------------------------------------------


class Found:
    """Of a caller's own: none of its code runs on what workers say."""

    __slots__ = ("__dict__", "rest", "size")

    def __init__(self, size: float, kind: str) -> None:
        self.size = size
        self.kind = kind

    def __eq__(self, other: object) -> bool:
        raise AssertionError

    __hash__ = None  # type: ignore[assignment]  # as Python has it beside __eq__

    def tolist(self) -> list[float]:
        raise AssertionError


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1.0, 1.0 + 1e-9, True),
        (1.0, 1.1, False),
        (1, 1.0, True),
        (True, 1, False),
        (NAN, NAN, True),
        (NAN, 1.0, False),
        ({"a": [1.0, 2]}, {"a": [1.0 + 1e-9, 2]}, True),
        ({"a": 1}, {"b": 1}, False),
        ([1], [1, 2], False),
        ((1,), [1], False),
        ("a", "a", True),
        ("a", b"a", False),
        (np.array([1.0]), np.array([1.0 + 1e-9]), True),
        (np.array([1.0]), [2.0], False),
        (Found(1.0, "a"), Found(1.0 + 1e-9, "a"), True),
        (Found(1.0, "a"), Found(1.1, "a"), False),
        (Found(1.0, "a"), Found(1.0, "b"), False),
        (Decimal("0.1"), Decimal("0.10"), True),
    ],
)
def test_numbers_may_be_close(one: object, other: object, same: bool) -> None:
    assert numbers(1e-6).same(one, other) is same
    assert numbers(1e-6).same(other, one) is same


def test_values_are_the_same_of_the_same_type() -> None:
    assert CBOR.same({"a": 1, "b": 2.5}, {"b": 2.5, "a": 1})
    assert CBOR.same(NAN, NAN)
    assert not CBOR.same(1, 1.0)
    assert not CBOR.same(1.0, 1.0 + 1e-12)
    assert SameValues(absolute=0.5).same(1, 1.4)
    assert BYTES.same(b"a", b"a")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_number_is_close_to_itself(number: float) -> None:
    assert numbers(1e-9).same(number, number)
    assert math.isfinite(number)


def test_of_a_process_its_result_counts_and_not_what_it_complains_of() -> None:
    one = ProcessResult(0, {"a": b"1"}, b"out", b"took 3 s").encode()
    other = ProcessResult(0, {"a": b"1"}, b"out", b"took 4 s").encode()
    third = ProcessResult(1, {"a": b"1"}, b"out", b"took 3 s").encode()
    assert bytes_of("process", one, None) == bytes_of("process", other, None)
    assert bytes_of("process", one, None) != bytes_of("process", third, None)
    assert CBOR.same(read_plain("process", one, None), read_plain("process", other, None))
    begins = [ProcessResult(0, {}, b"end", stdout_sha256=bytes([x]) * 32).encode() for x in (1, 2)]
    assert not CBOR.same(*(read_plain("process", each, None) for each in begins))
    assert bytes_of("process", begins[0], None) != bytes_of("process", begins[1], None)
    assert bytes_of("process", b"nonsense", None) == b"nonsense"
    assert bytes_of("python", b"pickle", None) == b"pickle"
    assert read_plain("custom", cbor2.dumps([1, 2]), None) == [1, 2]

    class Held:
        def take(self) -> memoryview:
            return memoryview(b"large")

    assert bytes_of("python", b"record", Held()) == b"large"


# -- ballots ----------------------------------------------------------------------------------


def answers(*results: bytes) -> tuple[Answer, ...]:
    return tuple(Answer(f"a{n}", PeerId(f"p{n}"), r, 1) for n, r in enumerate(results))


def counted(
    quorum: Quorum, given: Sequence[Answer], silent: frozenset[str] = frozenset()
) -> Accepted | NoQuorum | Open:
    return tally(
        quorum,
        given,
        lambda one, other: one.result == other.result,
        lambda worker: worker not in silent,
    )


def test_two_of_three_are_enough() -> None:
    quorum = Quorum(2, of=3)
    assert counted(quorum, answers(b"a")) == Open(1)
    assert counted(quorum, answers(b"a", b"b")) == Open(1)
    assert counted(Quorum(3, of=5), answers(b"a", b"b")) == Open(2)
    assert counted(quorum, answers(b"a", b"b", b"c")) == NoQuorum()
    found = counted(quorum, answers(b"a", b"b", b"a"))
    assert isinstance(found, Accepted)
    assert (found.answer.result, found.agreeing, found.wrong) == (b"a", ("p0", "p2"), ("p1",))


def test_it_ends_as_soon_as_no_quorum_can_come_of_it() -> None:
    assert counted(Quorum(3, of=3), answers(b"a", b"b")) == NoQuorum()
    assert counted(Quorum(3, of=4), answers(b"a", b"b", b"c")) == NoQuorum()
    assert counted(Quorum(2, of=5), answers(b"a", b"b", b"c", b"d")) == Open(1)


def test_closeness_is_not_transitive_so_one_answer_is_what_all_are_compared_with() -> None:
    given = answers(b"\x01", b"\x02", b"\x03")

    def close(one: Answer, other: Answer) -> bool:
        return abs(one.result[0] - other.result[0]) <= 1

    found = tally(Quorum(3, of=3), given, close, lambda worker: True)
    assert isinstance(found, Accepted)
    assert found.answer.result == b"\x02"
    found = tally(Quorum(2, of=3), given[:2], close, lambda worker: True)
    assert isinstance(found, Accepted)
    assert found.answer.result == b"\x01"


def test_who_was_found_wrong_has_no_vote_and_does_not_use_up_the_copies() -> None:
    given = answers(b"lie", b"lie", b"a")
    assert counted(Quorum(2, of=3), given, frozenset({"p0", "p1"})) == Open(1)
    found = counted(Quorum(2, of=3), (*given, Answer("", PeerId("p3"), b"a", 1)), frozenset({"p0"}))
    assert isinstance(found, Accepted)
    many = answers(*(b"%d" % n for n in range(6)))
    silent = frozenset(f"p{n}" for n in range(6))
    assert counted(Quorum(2, of=3), many, silent) == NoQuorum()


@given(
    st.integers(2, 5), st.integers(0, 4), st.lists(st.sampled_from([b"a", b"b", b"c"]), max_size=9)
)
def test_a_ballot_always_ends_and_accepts_only_what_enough_say(
    need: int, more: int, results: list[bytes]
) -> None:
    quorum = Quorum(need, of=need + more)
    for upto in range(1, len(results) + 1):
        found = counted(quorum, answers(*results[:upto]))
        if isinstance(found, Accepted):
            assert results[:upto].count(found.answer.result) >= need
            assert len(found.agreeing) + len(found.wrong) == upto
            return
        assert max(map(results[:upto].count, results[:upto])) < need
        if isinstance(found, NoQuorum):
            assert upto <= quorum.of
            return
        assert found.missing <= quorum.of - upto


def test_no_two_answers_are_of_one_operator() -> None:
    ballot = Ballot(Quorum(2, of=3, alike=("arch",)))
    assert ballot.bars(PeerId("b"), frozenset({"org:acme"})) is None
    ballot.add(Answer("", PeerId("a"), b"", 1, ("arch:x86_64", "grant:1", "org:acme")))
    arch = "arch:x86_64"
    assert ballot.bars(PeerId("a"), frozenset({arch})) == TooClose("", "a")
    assert ballot.bars(PeerId("b"), frozenset({arch, "org:acme"})) == TooClose("org:acme", "a")
    assert ballot.bars(PeerId("b"), frozenset({arch, "grant:1"})) == TooClose("grant:1", "a")
    assert ballot.bars(PeerId("b"), frozenset({arch, "grant:2"})) is None
    unalike = ballot.bars(PeerId("b"), frozenset({"arch:aarch64"}))
    assert unalike == Unalike(arch)
    assert str(unalike) == "is not arch x86_64, as the worker that answered first"
    assert "invitation" in str(TooClose("grant:1", "a"))
    first = Ballot(Quorum(2, of=3, alike=("gpu",)), (Answer("", PeerId("a"), b"", 1),))
    assert str(first.bars(PeerId("b"), frozenset({"gpu:a100"}))).startswith("is not without gpu")


def test_so_many_copies_go_out_at_once_as_are_still_needed() -> None:
    ballot = Ballot(Quorum(3, of=5, at_once=True))
    assert ballot.more(0) == 3
    ballot.draw(PeerId("a"))
    ballot.draw(PeerId("b"))
    assert (ballot.more(0), ballot.more(1)) == (1, 0)
    ballot.undraw(PeerId("a"))
    assert (ballot.drawn, ballot.more(1)) == (("b",), 1)
    ballot.undraw(PeerId("b"))
    ballot.add(answers(b"a")[0])
    assert ballot.more(2) == 0
    resumed = Ballot(Quorum(3, of=5, at_once=True), answers(b"a", b"a"))
    assert resumed.more(0) == 1
    ballot.lacks(3)
    assert ballot.more(2) == 1
    assert Ballot(Quorum(3, of=5)).more(0) == 1


def test_copies_that_go_out_at_once_are_not_of_one_operator() -> None:
    ballot = Ballot(Quorum(2, of=3, alike=("arch",), at_once=True))
    beside = {PeerId("a"): frozenset({"arch:x86_64", "org:acme"})}
    assert ballot.bars(PeerId("a"), frozenset({"arch:x86_64"}), beside) == TooClose("", "a")
    acme, other = frozenset({"arch:x86_64", "org:acme"}), frozenset({"arch:x86_64", "org:b"})
    assert ballot.bars(PeerId("b"), acme, beside) == TooClose("org:acme", "a")
    assert ballot.bars(PeerId("b"), other, beside) is None
    assert ballot.bars(PeerId("b"), frozenset({"org:b"}), beside) == Unalike("arch:x86_64")


# -- marks ------------------------------------------------------------------------------------


def test_a_worker_is_known_by_where_it_belongs_and_where_it_is() -> None:
    root, alice = identity("root"), identity("alice")
    rights = Rights(2 * 10**9, place=Place(org="acme"))
    grant = issue(root, rights, alice.peer_id)
    able = Capability(4000, 8 * GIB, gpus=(Gpu("0", "nvidia", "a100", GIB, 80),), arch="aarch64")
    worker = profile("alice", able, labels=(("site", "a"),))
    from dataclasses import replace

    addresses = (
        "/ip4/8.8.8.8/tcp/1",
        "/ip4/192.168.1.7/tcp/1",
        "/ip6/2001:4860:4860:1::8888/tcp/1",
        "/ip4/1.1.1.1/tcp/1/p2p/12D3KooWSdcZm6DUNFyTsp8kpFCPs1BfmHn45TjtGxmzewgY5gZj/p2p-circuit",
        "/dns4/alice.example/tcp/1",
    )
    marks = marks_of(replace(worker, addresses=addresses, grant=grant), root.public_key)
    assert of_kinds(marks, ("subnet",)) == {"subnet:8.8.8.0/24", "subnet:2001:4860:4860:1::/64"}
    assert {"org:acme", "arch:aarch64", "gpu:a100", "label.site:a", "os:linux"} <= marks
    assert len(of_kinds(marks, ("grant",))) == 1
    stranger = marks_of(replace(worker, grant=b"none"), root.public_key)
    assert not of_kinds(stranger, ("grant", "org"))
    other = issue(root, Rights(2 * 10**9), alice.peer_id)
    assert not of_kinds(marks_of(replace(worker, grant=other), root.public_key), ("org",))
