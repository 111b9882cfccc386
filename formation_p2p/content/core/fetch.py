"""Fetching one blob: which source is asked for which chunk, and when to stop.

    effects = fetch.handle(event, now_s)

Chunks are handed out as they are asked for: a source has a few under way, and gets another for
each that it brought, so that the fastest bring the most. What a source leaves undone others get.
Only verified chunks count: the shell checks each against the manifest before it tells of it.
Feed it a Tick every TICK_S; it ends with Fetched or GaveUp.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Self, assert_never

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.records.core.codec import Malformed, decode, encode, take_bytes, take_int
from formation_p2p.workload.core import blob as blobs
from formation_p2p.workload.core.blob import RAW, Blob, Cid

# The list of a long blob's chunks: what its CID is the hash of.
#
#     dag-cbor [size in bytes, the chunks' digests one after the other]
#
# Each chunk is checked on its own, as it comes, from any peer.

MAX_CHUNKS: Final = blobs.MAX_BLOB_BYTES // blobs.CHUNK_BYTES
# A list, an integer and a length before the digests.
MAX_MANIFEST_BYTES: Final = MAX_CHUNKS * blobs.DIGEST_BYTES + 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """`digests` are 32 bytes for each chunk. Of one chunk, it is written nowhere: the CID says
    as much."""

    size_bytes: int
    digests: bytes

    def digest(self, index: int) -> bytes:
        return self.digests[index * blobs.DIGEST_BYTES : (index + 1) * blobs.DIGEST_BYTES]

    @property
    def blob(self) -> Blob:
        if len(self.digests) == blobs.DIGEST_BYTES:
            return Blob(Cid(blobs.RAW, self.digests), self.size_bytes)
        return Blob(Cid(blobs.DAG_CBOR, blobs.digest_of(self.encode())), self.size_bytes)

    def encode(self) -> bytes:
        """The block that a CID of DAG_CBOR names; empty for one chunk."""
        if len(self.digests) == blobs.DIGEST_BYTES:
            return b""
        return encode([self.size_bytes, self.digests])

    @classmethod
    def of(cls, content: blobs.Buffer) -> Self:
        """Of content in memory. Raises InvalidInput, with `blob`, for more than a blob may have."""
        view = memoryview(content).cast("B")
        starts = range(0, len(view), blobs.CHUNK_BYTES) or (0,)
        digests = (blobs.digest_of(view[at : at + blobs.CHUNK_BYTES]) for at in starts)
        return cls(len(view), b"".join(digests))

    @classmethod
    def read(cls, blob: Blob, block: bytes) -> Self:
        """The manifest of `blob`, from what a peer sent as such. Raises Malformed where it is
        another's, or says another size than the reference."""
        if blob.cid.codec == blobs.RAW:
            if block:
                raise Malformed("manifest", "is there, of a blob that has one chunk")
            return cls(blob.size_bytes, blob.cid.digest)
        if blobs.digest_of(block) != blob.cid.digest:
            raise Malformed("manifest", "is not the one that was asked for")
        match decode(block, MAX_MANIFEST_BYTES):
            case [size, digests]:
                size_bytes = take_int(size, "size", blobs.CHUNK_BYTES + 1, blobs.MAX_BLOB_BYTES)
                listed = take_bytes(digests, "digests", MAX_MANIFEST_BYTES)
            case _:
                raise Malformed("manifest", "is not [size, digests]")
        if size_bytes != blob.size_bytes:
            raise Malformed("manifest", f"has {size_bytes} bytes where {blob.size_bytes} were told")
        if len(listed) != blob.chunks * blobs.DIGEST_BYTES:
            raise Malformed("manifest", "has too many or too few digests for its size")
        return cls(size_bytes, listed)


TICK_S: Final = 0.25
# Asked of one source and not on disk yet: hides a round trip of 60 ms at 1 Gbit/s, or some pauses
# of a busy machine. Each may be in memory here.
WINDOW_CHUNKS: Final = 8
# At once. More share the same link of ours.
MAX_OPEN: Final = 4
# Known at all. Holders tell of holders; to list hundreds gains nothing.
MAX_SOURCES: Final = 16
# Others that want the same, and bring sources of their own; more of them wait for the outcome.
MAX_JOINED: Final = 8
# A source that takes so long to answer has another one tried beside it.
HEDGE_S: Final = 1.0
# With nothing else left to ask for, a chunk that a source owes for so long is asked of another; and
# one that brings nothing for so long has another one tried beside it.
SLOW_S: Final = 2.0
# One that brings nothing for so long is given up; so is a link of less than 140 kbit/s.
STALL_S: Final = 60.0
# A source that was lost is tried again after this long, doubled each time.
FIRST_RETRY_S: Final = 0.25
LAST_RETRY_S: Final = 8.0
# Nothing from anyone for so long: the fetch has failed. Past STALL_S, so that one stuck source
# leaves time for the next, and past a network that is down for a minute.
PATIENCE_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class SourceOpened:
    """It has the blob. `manifest` where it was asked for, verified."""

    peer: PeerId
    manifest: Manifest | None = None
    holders: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class SourceLost:
    """Unreachable, cut or stuck: it may come back."""

    peer: PeerId
    why: str


@dataclass(frozen=True, slots=True)
class SourceRefused:
    """It said no, or sent what is wrong: it is asked no more."""

    peer: PeerId
    why: str


@dataclass(frozen=True, slots=True)
class Inspected:
    """What an earlier fetch left on disk was verified: these chunks are there."""

    kept: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class ChunkStored:
    """It came whole, was verified, and is on disk."""

    peer: PeerId
    index: int


@dataclass(frozen=True, slots=True)
class Joined:
    """Another one wants the same, and knows these to have it. They come first: the sources of the
    first may be as slow as he likes."""

    sources: tuple[Contact, ...]


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = SourceOpened | SourceLost | SourceRefused | Inspected | ChunkStored | Joined | Tick


@dataclass(frozen=True, slots=True)
class OpenSource:
    """Ends in SourceOpened, SourceLost or SourceRefused."""

    source: Contact
    manifest: bool


@dataclass(frozen=True, slots=True)
class WantChunk:
    peer: PeerId
    index: int


@dataclass(frozen=True, slots=True)
class CloseSource:
    """Nothing more is wanted of it, and nothing that it brings is waited for."""

    peer: PeerId
    why: str


@dataclass(frozen=True, slots=True)
class Inspect:
    """Make room for what the manifest lists, and see what is there. Ends in Inspected."""

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Fetched:
    """Every chunk is on disk. It is the last effect, as GaveUp is."""


@dataclass(frozen=True, slots=True)
class GaveUp:
    why: str


Effect = OpenSource | WantChunk | CloseSource | Inspect | Fetched | GaveUp


class _Is(StrEnum):
    RESTING = "resting"  # not asked, or lost; may be opened from `since_s` on
    OPENING = "opening"
    OPEN = "open"
    OUT = "out"


# What an event makes of a source; where it says nothing, the event comes too late to matter.
_NEXT: Final[dict[_Is, dict[type[Event], _Is]]] = {
    _Is.RESTING: {SourceRefused: _Is.OUT},
    _Is.OPENING: {SourceOpened: _Is.OPEN, SourceLost: _Is.RESTING, SourceRefused: _Is.OUT},
    _Is.OPEN: {SourceLost: _Is.RESTING, SourceRefused: _Is.OUT},
    _Is.OUT: {},
}


@dataclass(slots=True)
class _Source:
    contact: Contact
    state: _Is
    since_s: float
    wanted: dict[int, float] = field(default_factory=dict)  # and when it was asked for
    losses: int = 0
    why: str = "was not asked"

    def is_slow(self, now_s: float) -> bool:
        """Of one that is asked."""
        if self.state is _Is.OPEN:
            return bool(self.wanted) and self.since_s + SLOW_S <= now_s
        return self.since_s + HEDGE_S <= now_s


class Fetch:
    """See the module. `me` is left out of the sources. The first `handle` starts it."""

    def __init__(self, blob: Blob, me: PeerId, now_s: float, stall_s: float = STALL_S) -> None:
        self._stall_s = stall_s
        self._blob = blob
        self._me = me
        self._sources: dict[PeerId, _Source] = {}
        self._manifest: Manifest | None = None
        self._inspecting = False
        self._joined = 0
        self._missing: deque[int] = deque()  # and not asked for
        self._lacking: set[int] | None = None  # all that is not there; None until inspected
        self.progress_s = now_s
        self._over = False
        self._learn(blob.sources, now_s)

    @property
    def done_bytes(self) -> int:
        if self._lacking is None:
            return 0
        return self._blob.size_bytes - sum(map(self._blob.chunk_bytes, self._lacking))

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        if self._over:
            return []
        out: list[Effect] = []
        match event:
            case SourceOpened(peer, manifest, holders):
                if self._step(peer, event, now_s) is not None:
                    self._learn(holders, now_s)
                    self._manifest = self._manifest or manifest
            case SourceLost(peer, why) | SourceRefused(peer, why):
                self._leave(peer, event, why, now_s)
            case Inspected(kept):
                self._lacking = set(range(self._blob.chunks)) - kept
                self._missing.extend(sorted(self._lacking))
                self.progress_s = now_s
            case ChunkStored(peer, index):
                self._stored(peer, index, now_s)
            case Joined(sources):
                self._join(sources, now_s)
            case Tick():
                self._drop_stuck(now_s, out)
            case _:
                assert_never(event)
        out += self._pursue(now_s)
        self._over = bool(out) and isinstance(out[-1], Fetched | GaveUp)
        return out

    def _learn(self, contacts: tuple[Contact, ...], now_s: float) -> None:
        for contact in contacts:
            if len(self._sources) < MAX_SOURCES and contact.peer_id != self._me:
                new = _Source(contact, _Is.RESTING, now_s)
                self._sources.setdefault(contact.peer_id, new)

    def _join(self, contacts: tuple[Contact, ...], now_s: float) -> None:
        if self._joined < MAX_JOINED:
            self._joined += 1
            known, self._sources = self._sources, {}
            self._learn(tuple(x for x in contacts if x.peer_id not in known), now_s)
            self._sources |= known

    def _step(self, peer: PeerId, event: Event, now_s: float) -> _Source | None:
        source = self._sources[peer]
        state = _NEXT[source.state].get(type(event))
        if state is None:
            return None
        source.state, source.since_s = state, now_s
        return source

    def _leave(self, peer: PeerId, event: Event, why: str, now_s: float) -> None:
        source = self._step(peer, event, now_s)
        if source is None:
            return
        source.why = why
        source.since_s += min(FIRST_RETRY_S * 2**source.losses, LAST_RETRY_S)
        source.losses += 1
        unasked, source.wanted = source.wanted, {}
        # In front: a file that grows from its beginning on is read ahead by every disk.
        self._missing.extendleft(
            index for index in sorted(unasked, reverse=True) if self._is_open(index)
        )

    def _is_open(self, index: int) -> bool:
        assert self._lacking is not None, "chunks were wanted before it was known which"
        return index in self._lacking and not any(
            index in source.wanted for source in self._sources.values()
        )

    def _stored(self, peer: PeerId, index: int, now_s: float) -> None:
        assert self._lacking is not None, "a chunk came before one was wanted"
        source = self._sources[peer]
        source.wanted.pop(index, None)
        source.since_s, source.losses = now_s, 0
        self.progress_s = now_s
        self._lacking.discard(index)

    def _drop_stuck(self, now_s: float, out: list[Effect]) -> None:
        for peer, source in self._sources.items():
            stuck = source.since_s + self._stall_s <= now_s
            if source.state is _Is.OPEN and source.wanted and stuck:
                why = f"brought nothing for {self._stall_s:.0f} s"
                out.append(CloseSource(peer, why))
                self._leave(peer, SourceLost(peer, why), why, now_s)

    def _pursue(self, now_s: float) -> Iterator[Effect]:
        if self._lacking is not None and not self._lacking:
            yield Fetched()
        elif all(source.state is _Is.OUT for source in self._sources.values()):
            yield GaveUp(f"no source has it: {self._reasons()}")
        elif self.progress_s + PATIENCE_S <= now_s:
            yield GaveUp(f"nothing came for {PATIENCE_S:.0f} s: {self._reasons()}")
        else:
            if self._blob.cid.codec == RAW:
                self._manifest = Manifest(self._blob.size_bytes, self._blob.cid.digest)
            if self._manifest is not None and not self._inspecting:
                self._inspecting = True
                yield Inspect(self._manifest)
            yield from self._open_more(now_s)
            yield from self._want_more(now_s)

    def _reasons(self) -> str:
        reasons = (f"{peer} {source.why}" for peer, source in self._sources.items())
        return "; ".join(reasons) or "no source is known"

    def _open_more(self, now_s: float) -> Iterator[Effect]:
        sources = self._sources.values()
        busy = [s for s in sources if s.state in (_Is.OPENING, _Is.OPEN)]
        quick = [s for s in busy if not s.is_slow(now_s)]
        # One that is quick is enough until it is known how much is to be fetched.
        chunks = len(self._lacking) if self._lacking is not None else 1
        useful = min(MAX_OPEN, -(-chunks // WINDOW_CHUNKS))
        places = min(useful - len(quick), 2 * MAX_OPEN + self._joined - len(busy))
        resting = [s for s in sources if s.state is _Is.RESTING and s.since_s <= now_s]
        resting.sort(key=lambda source: source.losses)  # stable: then as they were told of
        for source in resting[: max(places, 0)]:
            source.state, source.since_s = _Is.OPENING, now_s
            yield OpenSource(source.contact, manifest=self._manifest is None)

    def _want_more(self, now_s: float) -> Iterator[Effect]:
        for peer, source in self._sources.items():
            if source.state is not _Is.OPEN or self._lacking is None:
                continue
            while len(source.wanted) < WINDOW_CHUNKS:
                index = self._missing.popleft() if self._missing else self._overdue(peer, now_s)
                if index is None:
                    break
                if not source.wanted:
                    source.since_s = now_s
                source.wanted[index] = now_s
                yield WantChunk(peer, index)

    def _overdue(self, peer: PeerId, now_s: float) -> int | None:
        """A chunk that another source owes for too long, and that was not asked for twice."""
        assert self._lacking is not None
        owed = [each for source in self._sources.values() for each in source.wanted.items()]
        times = Counter(index for index, _ in owed)
        late = {index for index, asked_s in owed if times[index] == 1 and asked_s + SLOW_S <= now_s}
        return min((late & self._lacking) - self._sources[peer].wanted.keys(), default=None)
