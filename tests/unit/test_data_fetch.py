"""A fetch: who is asked for what, and what becomes of it when sources fail."""

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.content.core import fetch as fetching
from formation_p2p.content.core.fetch import (
    HEDGE_S,
    LAST_RETRY_S,
    MAX_OPEN,
    MAX_SOURCES,
    PATIENCE_S,
    SLOW_S,
    STALL_S,
    TICK_S,
    ChunkStored,
    CloseSource,
    Effect,
    Event,
    Fetch,
    Fetched,
    GaveUp,
    Inspect,
    Inspected,
    Joined,
    Manifest,
    OpenSource,
    SourceLost,
    SourceOpened,
    SourceRefused,
    Tick,
    WantChunk,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.workload.core.blob import CHUNK_BYTES, Blob, digest_of


def contact(number: int) -> Contact:
    return Contact(Identity.from_seed(bytes([number]) * 32).peer_id, (f"/ip4/10.0.0.{number}",))


ME, ALICE, BOB, CAROL = (contact(number).peer_id for number in range(4))
A, B, C = (contact(number) for number in (1, 2, 3))


def manifest(chunks: int) -> Manifest:
    return Manifest((chunks - 1) * CHUNK_BYTES + 5, digest_of(b"x") * chunks)


def blob(chunks: int, *sources: Contact) -> Blob:
    made = manifest(chunks).blob
    return Blob(made.cid, made.size_bytes, sources)


@pytest.fixture(autouse=True)
def four_at_a_time() -> Iterator[None]:
    """So that the stories are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fetching, "WINDOW_CHUNKS", 4)
        yield


class Story:
    """A fetch with its clock."""

    def __init__(self, chunks: int, *sources: Contact) -> None:
        self.manifest = manifest(chunks)
        self.now_s = 100.0
        self.fetch = Fetch(blob(chunks, *sources), ME, self.now_s)

    def feed(self, event: Event, after_s: float = 0.0) -> list[Effect]:
        self.now_s += after_s
        return self.fetch.handle(event, self.now_s)

    def begin(self, peer: PeerId = ALICE, holders: tuple[Contact, ...] = ()) -> list[Effect]:
        """Up to the first wants."""
        self.feed(Tick())
        self.feed(SourceOpened(peer, self.manifest, holders))
        return self.feed(Inspected())


def wants(peer: PeerId, *indexes: int) -> list[Effect]:
    return [WantChunk(peer, index) for index in indexes]


def test_a_blob_of_one_chunk_needs_one_source_and_no_manifest() -> None:
    story = Story(1, A)
    assert story.feed(Tick()) == [
        Inspect(Manifest(5, digest_of(b"x"))),
        OpenSource(A, manifest=False),
    ]
    assert story.feed(Inspected()) == []
    assert story.feed(SourceOpened(ALICE)) == wants(ALICE, 0)
    assert story.fetch.done_bytes == 0
    assert story.feed(ChunkStored(ALICE, 0)) == [Fetched()]
    assert story.fetch.done_bytes == 5
    assert story.feed(Tick()) == []  # over


def test_a_longer_one_has_its_manifest_first_and_then_a_few_chunks_at_a_time() -> None:
    story = Story(6, A)
    assert story.feed(Tick()) == [OpenSource(A, manifest=True)]
    assert story.fetch.done_bytes == 0
    assert story.feed(SourceOpened(ALICE, story.manifest)) == [Inspect(story.manifest)]
    assert story.feed(Inspected()) == wants(ALICE, 0, 1, 2, 3)
    assert story.feed(ChunkStored(ALICE, 0)) == wants(ALICE, 4)
    assert story.fetch.done_bytes == CHUNK_BYTES
    assert story.feed(ChunkStored(ALICE, 1)) == wants(ALICE, 5)
    for index in (2, 3, 4):
        assert story.feed(ChunkStored(ALICE, index)) == []
    assert story.feed(ChunkStored(ALICE, 5)) == [Fetched()]


def test_what_an_earlier_fetch_left_is_not_asked_for_again() -> None:
    story = Story(3, A)
    story.feed(Tick())
    story.feed(SourceOpened(ALICE, story.manifest))
    assert story.feed(Inspected(frozenset({0, 2}))) == wants(ALICE, 1)
    whole = Story(3, A)
    whole.feed(Tick())
    whole.feed(SourceOpened(ALICE, whole.manifest))
    assert whole.feed(Inspected(frozenset({0, 1, 2}))) == [Fetched()]


def test_those_whom_a_source_knows_to_have_it_are_asked_as_well() -> None:
    story = Story(100, A)
    effects = story.begin(holders=(B, C, Contact(ME)))
    assert effects == [
        OpenSource(B, manifest=False),
        OpenSource(C, manifest=False),
        *wants(ALICE, 0, 1, 2, 3),
    ]
    assert story.feed(SourceOpened(BOB)) == wants(BOB, 4, 5, 6, 7)
    # Who brings one gets another: the fastest bring the most.
    assert story.feed(ChunkStored(BOB, 4)) == wants(BOB, 8)
    assert story.feed(ChunkStored(BOB, 5)) == wants(BOB, 9)


def test_no_more_sources_are_opened_than_there_is_work_for() -> None:
    story = Story(fetching.WINDOW_CHUNKS, A, B)
    assert story.begin() == wants(ALICE, 0, 1, 2, 3)


def test_a_source_that_is_cut_leaves_its_chunks_to_the_others_and_comes_back() -> None:
    story = Story(8, A, B)
    story.begin()
    story.feed(SourceOpened(BOB))
    story.feed(ChunkStored(ALICE, 0))
    # Bob has 4 to 7 under way; what Alice leaves waits for the one who is free first.
    assert story.feed(SourceLost(ALICE, "was cut")) == []
    assert story.feed(ChunkStored(BOB, 4)) == wants(BOB, 1)
    # Alice is asked again a moment later.
    assert story.feed(Tick(), after_s=1.0) == [OpenSource(A, manifest=False)]
    assert story.feed(SourceOpened(ALICE)) == wants(ALICE, 2, 3)


def test_a_chunk_that_another_has_under_way_is_not_left_open() -> None:
    story = Story(5, A, B)
    story.begin()
    story.feed(SourceOpened(BOB))
    assert story.feed(Tick(), after_s=SLOW_S) == wants(BOB, 0, 1, 2)  # beside 4
    assert story.feed(SourceLost(BOB, "was cut")) == []
    assert story.feed(ChunkStored(ALICE, 0)) == wants(ALICE, 4)


def test_a_source_that_is_lost_again_and_again_is_asked_less_often() -> None:
    story = Story(1, A)
    story.feed(Tick())
    waits = []
    for _ in range(8):
        story.feed(SourceLost(ALICE, "unreachable"))
        began_s = story.now_s
        while not any(isinstance(each, OpenSource) for each in story.feed(Tick(), TICK_S)):
            pass
        waits.append(story.now_s - began_s)
    assert waits == sorted(waits)
    assert waits[0] <= 2 * TICK_S
    assert LAST_RETRY_S <= waits[-1] <= LAST_RETRY_S + TICK_S


def test_one_that_sends_wrong_bytes_is_asked_no_more() -> None:
    assert Story(1).feed(Tick()) == [GaveUp("no source has it: no source is known")]
    story = Story(2, A, B)
    story.begin()
    assert story.feed(SourceRefused(ALICE, "sent wrong bytes")) == [OpenSource(B, manifest=False)]
    assert story.feed(SourceLost(ALICE, "cut")) == []  # late news of it change nothing
    assert story.feed(SourceOpened(ALICE, story.manifest)) == []
    assert story.feed(SourceOpened(BOB)) == wants(BOB, 0, 1)
    assert story.feed(SourceRefused(BOB, "no")) == [
        GaveUp(f"no source has it: {ALICE} sent wrong bytes; {BOB} no")
    ]


def test_a_source_that_does_not_answer_has_another_tried_beside_it() -> None:
    story = Story(2, A, B)
    assert story.feed(Tick()) == [OpenSource(A, manifest=True)]
    assert story.feed(Tick(), after_s=HEDGE_S / 2) == []
    assert story.feed(Tick(), after_s=HEDGE_S) == [OpenSource(B, manifest=True)]
    assert story.feed(SourceOpened(BOB, story.manifest)) == [Inspect(story.manifest)]
    # The first one answers after all: its manifest is not needed.
    assert story.feed(SourceOpened(ALICE, story.manifest)) == []
    assert story.feed(Inspected()) == wants(ALICE, 0, 1)


def test_a_source_that_brings_nothing_has_another_tried_beside_it() -> None:
    """Also where one is enough. A holder of a checkpoint that lies of having it is the first."""
    story = Story(2, A, B)
    assert story.begin() == wants(ALICE, 0, 1)
    assert story.feed(Tick(), after_s=SLOW_S / 2) == []
    assert story.feed(Tick(), after_s=SLOW_S) == [OpenSource(B, manifest=False)]
    assert story.feed(SourceOpened(BOB)) == wants(BOB, 0, 1)
    # One that brings something now and then has no other beside it.
    slow = Story(3, A, B)
    slow.begin()
    assert slow.feed(ChunkStored(ALICE, 0), after_s=SLOW_S / 2) == []
    assert slow.feed(Tick(), after_s=SLOW_S / 2) == []


def test_who_waits_for_the_same_brings_sources_that_come_first() -> None:
    crowd = tuple(contact(number) for number in range(10, 10 + 2 * MAX_OPEN))
    story = Story(1, *crowd)
    busy = story.feed(Tick())
    for _ in range(20):
        busy += story.feed(Tick(), after_s=HEDGE_S)
    assert sum(isinstance(each, OpenSource) for each in busy) == 2 * MAX_OPEN
    assert story.feed(Joined((A, crowd[0]))) == [OpenSource(A, manifest=False)]
    for number in range(30, 50):
        story.feed(Joined((contact(number),)))
    story.feed(SourceOpened(ALICE))
    assert story.feed(Inspected()) == wants(ALICE, 0)
    assert story.feed(ChunkStored(ALICE, 0)) == [Fetched()]


def test_a_stuck_source_is_closed_and_its_chunks_go_to_another() -> None:
    story = Story(5, A, B)
    story.begin()
    effects = story.feed(Tick(), after_s=STALL_S)
    why = f"brought nothing for {STALL_S:.0f} s"
    assert effects == [CloseSource(ALICE, why)]
    assert story.feed(SourceOpened(BOB)) == wants(BOB, 0, 1, 2, 3)
    # What comes of the closed one is too late to matter.
    assert story.feed(SourceLost(ALICE, "cut")) == []


def test_a_chunk_that_is_owed_for_long_is_asked_of_another_once() -> None:
    story = Story(6, A, B)
    story.begin()
    assert story.feed(SourceOpened(BOB)) == wants(BOB, 4, 5)
    story.feed(ChunkStored(BOB, 4))
    assert story.feed(ChunkStored(BOB, 5)) == []
    assert story.feed(Tick(), after_s=SLOW_S) == wants(BOB, 0, 1, 2, 3)
    assert story.feed(Tick(), after_s=SLOW_S) == []
    # Whoever is first brings it; the other's counts for nothing.
    for index in range(3):
        assert story.feed(ChunkStored(BOB, index)) == []
    assert story.feed(ChunkStored(ALICE, 0)) == []
    assert story.feed(ChunkStored(BOB, 3)) == [Fetched()]


def test_it_gives_up_when_nothing_has_come_for_long() -> None:
    story = Story(2, A)
    story.feed(Tick())
    story.feed(SourceLost(ALICE, "unreachable"))
    (end,) = story.feed(Tick(), after_s=PATIENCE_S)
    assert end == GaveUp(f"nothing came for {PATIENCE_S:.0f} s: {ALICE} unreachable")


def test_the_sources_are_bounded() -> None:
    crowd = tuple(contact(number) for number in range(10, 18))
    others = tuple(contact(number) for number in range(20, 28))
    story = Story(1000, *crowd)
    story.feed(Tick())
    opened = story.feed(SourceOpened(crowd[0].peer_id, story.manifest, others))
    more = tuple(contact(number) for number in range(30, 38))
    opened += story.feed(SourceOpened(crowd[1].peer_id, None, more))
    opened += story.feed(Inspected())
    known: set[PeerId] = {crowd[0].peer_id}
    for _ in range(100):
        opened += story.feed(Tick(), after_s=HEDGE_S)
        while opened:
            effect = opened.pop()
            if isinstance(effect, OpenSource):
                known.add(effect.source.peer_id)
                opened += story.feed(SourceRefused(effect.source.peer_id, "no"))
    assert len(known) == MAX_SOURCES


@given(st.data())
def test_whatever_sources_do_every_chunk_comes_or_it_gives_up(data: st.DataObject) -> None:
    """The effects stay in bounds, nothing is wanted of one who is not open, and it ends."""
    chunks = data.draw(st.integers(1, 12))
    story = Story(chunks, A, B, C)
    open_: dict[PeerId, set[int]] = {}
    opening: dict[PeerId, bool] = {}
    stored: set[int] = set()
    inspecting = False
    for _ in range(600):
        choices: list[Event] = [Tick()]
        if inspecting:
            choices.append(Inspected(frozenset(stored)))
        for peer, with_manifest in opening.items():
            choices.append(SourceOpened(peer, story.manifest if with_manifest else None))
            choices.append(SourceLost(peer, "cut"))
        for peer, wanted in open_.items():
            choices += [ChunkStored(peer, index) for index in sorted(wanted)]
            choices.append(SourceLost(peer, "cut"))
            choices.append(SourceRefused(peer, "no"))
        event = data.draw(st.sampled_from(choices))
        match event:
            case Inspected():
                inspecting = False
            case SourceOpened(peer):
                del opening[peer]
                open_[peer] = set()
            case SourceLost(peer) | SourceRefused(peer):
                opening.pop(peer, None)
                open_.pop(peer, None)
            case ChunkStored(peer, index):
                open_[peer].discard(index)
                stored.add(index)
        for effect in story.feed(event, after_s=data.draw(st.sampled_from((0.0, TICK_S, 5.0)))):
            match effect:
                case OpenSource(source, with_manifest):
                    assert source.peer_id not in opening | open_
                    opening[source.peer_id] = with_manifest
                case WantChunk(peer, index):
                    assert index not in stored
                    open_[peer].add(index)
                    assert len(open_[peer]) <= fetching.WINDOW_CHUNKS
                case CloseSource(peer):
                    del open_[peer]
                case Inspect():
                    inspecting = True
                case Fetched():
                    assert stored == set(range(chunks))
                    return
                case GaveUp():
                    return
        assert len(open_) <= MAX_OPEN + len(opening) + 2 * MAX_OPEN
    for _ in range(int(2 * PATIENCE_S)):
        if any(isinstance(each, fetching.GaveUp) for each in story.feed(Tick(), after_s=1.0)):
            return
    pytest.fail("it did not end")
