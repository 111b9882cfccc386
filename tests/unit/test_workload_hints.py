"""Hints as people write them, and as the program keeps them."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
from formation_p2p.workload.core.blob import CHUNK_BYTES, DAG_CBOR, RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import (
    MAX_NAMED,
    MAX_NEAR,
    MAX_RTT_MS,
    MAX_TASK_NAME_CHARS,
    NO_HINTS,
    Hints,
    Kind,
    format_hints,
    parse_hints,
)
from tests.support.stories import ALICE, BOB, CAROL

SMALL = Cid(RAW, digest_of(b"small"))
LARGE = Cid(DAG_CBOR, digest_of(b"large"))


def blob(content: bytes, size_bytes: int = 100, *sources: Contact) -> Blob:
    return Blob(Cid(RAW, digest_of(content)), size_bytes, sources)


def test_every_kind_of_hint_is_read() -> None:
    end = ALICE.peer_id[-8:]
    hints = parse_hints(
        [
            f"prefer={ALICE.peer_id}",
            f"avoid=…{end}",
            "require region=eu-west",
            "label.disk=ssd",
            f"near={SMALL}",
            f"near={LARGE}:2GiB",
            "with=job/0",
            "away=noisy neighbour",
            "rtt=50ms",
        ]
    )
    assert hints == Hints(
        prefer=(ALICE.peer_id,),
        avoid=(end,),
        region="eu-west",
        labels=(("disk", "ssd"),),
        near=(Blob(SMALL, CHUNK_BYTES), Blob(LARGE, 2 * GIB)),
        with_tasks=("job/0",),
        away_from=("noisy neighbour",),
        max_rtt_ms=50,
        required=frozenset({"region"}),
    )
    assert parse_hints(format_hints(hints)) == hints
    assert hints.kinds == tuple(Kind)
    assert hints == replace(hints, required={Kind.REGION})
    assert len({hints, hints}) == 1  # it is a key of tables


@pytest.mark.parametrize("text", ["rtt=50ms", "rtt=50", "rtt<=50ms", " rtt = 50ms "])
def test_a_distance_is_written_in_several_ways(text: str) -> None:
    assert parse_hints([text]) == Hints(max_rtt_ms=50)


def test_data_of_unknown_size_counts_as_little_as_its_name_allows() -> None:
    """A name of one chunk says nothing of how long that is, one of several that they are two."""
    (small, large) = parse_hints([f"near={SMALL}", f"near={LARGE}"]).near
    assert (small.size_bytes, large.size_bytes) == (MIB, MIB + 1)


@pytest.mark.parametrize(
    ("items", "why"),
    [
        (["regoin=eu"], "hint: 'regoin=eu' is not a hint; write prefer=PEER, avoid=PEER, region="),
        (["eu-west"], "hint: 'eu-west' is not a hint"),
        (["region="], "hint: 'region=' is not a hint"),
        ([5], "hint: 5 is not a hint; write prefer=PEER"),
        (["label=ssd"], "hint: 'label=ssd' is not a hint"),
        (["require"], "hint: 'require' is not a hint"),
        (["region=eu", "region=us"], "region: is given twice"),
        (["rtt=1", "rtt=2"], "rtt: is given twice"),
        (["region=eu west"], "label.region: 'eu west' is not a value"),
        (["label.a/b=c"], "label: 'a/b' is not a key"),
        (["label.a=b", "label.a=c"], "label.a: is given twice"),
        (["rtt=fast"], "rtt: 'fast' is not a time; write milliseconds, like 50ms"),
        (["rtt=0"], "rtt: 0 is less than 1"),
        ([f"rtt={MAX_RTT_MS + 1}"], "rtt: .* at most"),
        (["near=rubbish"], "near: 'rubbish': cid: is not a CIDv1"),
        ([f"near={SMALL}:huge"], "near: .* is not a size"),
        ([f"near={SMALL}:2GiB"], "near: .* a size that"),
        ([f"near={SMALL}", f"near={SMALL}:1"], "near: the same data is named twice"),
        (["prefer=abc"], "prefer: 'abc' is too short or too long; write the last 8 characters"),
        ([f"avoid={'a' * 65}"], "avoid: .* is too short or too long"),
        (["avoid=0OIl0OIl"], "avoid: .* is not a peer id, nor the end of one"),
        (["with=\x07"], "with: .* names no task; write the id or the label"),
        ([f"away={'x' * (MAX_TASK_NAME_CHARS + 1)}"], "away: .* names no task"),
        ([f"with={n}" for n in range(MAX_NAMED + 1)], "with: there are more than 16"),
        (
            [f"near={Cid(RAW, digest_of(b'%d' % n))}" for n in range(MAX_NEAR + 1)],
            "near: there are more than 16",
        ),
        (["with=a", "require with=b"], "with: some are required and some are not"),
    ],
)
def test_what_is_no_hint_is_refused_with_what_to_write(items: list[str], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        parse_hints(items)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"prefer": "12D3KooW"}, "prefer: '12D3KooW' is not a tuple"),
        ({"prefer": (7,)}, "prefer: 7 is not a peer id"),
        ({"with_tasks": (7,)}, "with: 7 names no task"),
        ({"max_rtt_ms": 2.5}, "rtt: 2.5 is not a whole number"),
        ({"away_from": (" a",)}, "away: ' a' names no task; .* no space at its ends"),
        ({"with_tasks": ("a ",)}, "with: 'a ' names no task"),
        (
            {"region": "eu", "required": "region"},
            "required: 'region' is not a set; write {'region'}",
        ),
        ({"region": "eu", "required": None}, "required: a NoneType is not a set"),
        ({"required": frozenset({1, "b"})}, "required: 1 is not among what is given: nothing"),
        ({"required": frozenset({"region"})}, "required: 'region' is not among what is .*nothing"),
        (
            {"region": "eu", "required": frozenset({"label"})},
            "required: 'label' is not among what is given: region",
        ),
    ],
)
def test_what_a_program_gives_is_checked_as_well(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        Hints(**fields)


words = st.text("abcdefghijkmnopqrstuvwxyz", min_size=1, max_size=8)
names = st.text(st.characters(codec="ascii"), min_size=1, max_size=8).filter(
    lambda name: name.isprintable() and name == name.strip()
)
peers = st.tuples(st.text("123456789ABCDEFGH", min_size=8, max_size=52))
blobs = st.builds(
    Blob,
    st.binary(min_size=32, max_size=32).map(lambda digest: Cid(RAW, digest)),
    st.integers(0, CHUNK_BYTES),
    st.just(()) | st.just((ALICE,)),
)


@st.composite
def drawn_hints(draw: st.DrawFn) -> Hints:
    hints = Hints(
        prefer=draw(st.just(()) | peers),
        avoid=draw(st.just(()) | peers),
        region=draw(st.just("") | words),
        labels=draw(st.dictionaries(words, words, max_size=3).map(lambda d: tuple(d.items()))),
        near=draw(st.lists(blobs, max_size=3, unique_by=lambda b: b.cid).map(tuple)),
        with_tasks=draw(st.lists(names, max_size=3).map(tuple)),
        away_from=draw(st.lists(names, max_size=3).map(tuple)),
        max_rtt_ms=draw(st.none() | st.integers(1, MAX_RTT_MS)),
    )
    required = draw(st.sets(st.sampled_from(hints.kinds))) if hints.kinds else set()
    return replace(hints, required=frozenset(required))


@given(drawn_hints())
def test_hints_are_read_as_they_are_shown_but_for_who_has_the_data(hints: Hints) -> None:
    read = parse_hints(format_hints(hints))
    assert Hints.unpack(read.pack()) == read
    assert format_hints(read) == format_hints(hints)
    assert read.required == hints.required


@given(drawn_hints())
def test_hints_come_back_from_a_state_as_they_were(hints: Hints) -> None:
    assert Hints.unpack(hints.pack()) == hints


@pytest.mark.parametrize("packed", [None, [], [[]], [[7], []], [["region"], []], [[], [7]]])
def test_what_is_no_packed_hints_is_refused(packed: object) -> None:
    with pytest.raises(InvalidInput):
        Hints.unpack(packed)


def test_no_hints_say_nothing() -> None:
    assert parse_hints([]) == NO_HINTS
    assert NO_HINTS.kinds == ()
    assert format_hints(NO_HINTS) == ()


def test_a_peer_is_named_by_its_id_or_the_end_of_it() -> None:
    hints = Hints(prefer=(ALICE.peer_id,), avoid=(BOB.peer_id[-8:],))
    assert [hints.prefers(each.peer_id) for each in (ALICE, BOB)] == [True, False]
    assert [hints.avoids(each.peer_id) for each in (ALICE, BOB, CAROL)] == [False, True, False]


def test_data_counts_by_its_bytes_and_empty_content_is_worth_a_little() -> None:
    hints = Hints(near=(blob(b"a", 100, ALICE), blob(b"b", 50, ALICE, BOB), blob(b"c", 0)))
    assert hints.data_bytes == 151
    assert [hints.bytes_at(each.peer_id) for each in (ALICE, BOB, CAROL)] == [150, 50, 0]
    assert hints.bytes_of(()) == 0
    assert hints.bytes_of((0, 2)) == 101
    assert hints.bytes_of((0, 0, 1, 2, 3, 15)) == 151
