"""Content that this node holds because another member has asked for it: checkpoints of tasks that
run elsewhere, and outputs of those that have run there. It is the cache's, and stays for a while at
least. Only a node that works for others holds any. `is_held` asks another node to hold some."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.content.core.messages import MAX_KEPT_FROM, BlobRefused, Keep
from formation_p2p.content.data_stream import PROTOCOL, DataStream, keep_s
from formation_p2p.content.places import Places
from formation_p2p.content.results import KEPT_S
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import PeerId
from formation_p2p.net.transport.errors import IOException
from formation_p2p.workload.core.blob import Blob, Cid

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

_DIAL_S: Final = 10.0
# Of the cache, for all who ask: the rest is for what this node's own tasks read and make.
SHARE: Final = 4
# Of these, for one of them.
PEER_SHARE: Final = 4
# Each is a name in the store, and a few hundred bytes here.
MAX_HELD: Final = 1024
# Of these, for one of them.
MAX_HELD_OF_PEER: Final = MAX_HELD // PEER_SHARE
# Fetched at once, each with up to 16 chunks in memory; and of these, for one of them.
MAX_COMING: Final = 8
MAX_COMING_OF_PEER: Final = 2
# What has been held for long enough is looked for this often.
TRIM_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class _Held:
    owner: Contact
    holder: str
    size_bytes: int
    until_s: float


class HeldForOthers:
    """`shows` is told the grant that a peer has shown, `take` fetches a blob for it and holds that
    under a name, `release` ends that."""

    def __init__(
        self,
        store: BlobStore,
        shows: Callable[[PeerId, bytes], None],
        take: Callable[[Blob, str, PeerId], Awaitable[None]],
        release: Callable[[str], Awaitable[None]],
    ) -> None:
        self._store = store
        self._shows = shows
        self._take = take
        self._release = release
        self._held: dict[tuple[PeerId, bytes], _Held] = {}
        # Those that are on their way count as well: a peer may ask for many at once.
        self._coming: dict[tuple[PeerId, bytes], int] = {}
        self._places = Places(MAX_COMING, MAX_COMING_OF_PEER)
        self._is_leaving = False

    def leave(self) -> tuple[Contact, ...]:
        """Take nothing more until `stay`. Returns those for whom something is held, who are to have
        it held elsewhere."""
        self._is_leaving = True
        return tuple({peer_id: each.owner for (peer_id, _), each in self._held.items()}.values())

    def _refusal(self) -> str:
        return "leaves" if self._is_leaving else ""

    def stay(self) -> None:
        self._is_leaving = False

    async def hold(self, peer: Contact, asked: Keep) -> str:
        """Why not; empty where it is here now, for `KEPT_S` at least, or until the peer has another
        one held under that name."""
        if why := self._refusal():
            return why
        await self.trim()
        key, size_bytes = (peer.peer_id, asked.name), asked.size_bytes
        if key in self._coming:
            return "fetches what it is to hold under that name"
        if not self._has_room(key, size_bytes):
            return "has no room for more that others keep here"
        who = hashlib.sha256(f"{peer.peer_id} {asked.name.hex()} {asked.cid}".encode())
        holder = f"for-others-{who.hexdigest()[:32]}"
        before = self._held.get(key)
        is_new = before is None or before.holder != holder
        self._coming[key] = size_bytes
        self._shows(peer.peer_id, asked.grant)
        held = False
        try:
            blob = Blob(asked.cid, size_bytes, (*asked.sources, peer), asked.rule)
            async with self._places.of(peer.peer_id):
                await self._take(blob, holder, peer.peer_id)
            # What was here before was not measured by the fetch.
            if await trio.to_thread.run_sync(self._size_of, asked.cid) != size_bytes:
                return "has it in another size"
            if why := self._refusal():  # its owner was not told
                return why
            held = True
        except FormationError as error:
            return f"cannot have it: {error}"
        finally:
            del self._coming[key]
            if is_new and not held:
                with trio.CancelScope(shield=True):
                    await self._release(holder)
        self._held[key] = _Held(peer, holder, size_bytes, trio.current_time() + KEPT_S)
        if before is not None and is_new:
            await self._release(before.holder)
        return ""

    def _size_of(self, cid: Cid) -> int:
        """Of what is here; -1 for what is not."""
        content = self._store.content(cid)
        if content is None:
            return -1
        with content:
            return content.manifest.blob.size_bytes

    def _has_room(self, key: tuple[PeerId, bytes], size_bytes: int) -> bool:
        """What is to be replaced stays until the new one is here, and does not count."""
        most_bytes = self._store.limit_bytes // SHARE
        sizes = {known: held.size_bytes for known, held in self._held.items()} | self._coming
        sizes.pop(key, None)
        own = [size for (peer_id, _), size in sizes.items() if peer_id == key[0]]
        return (
            len(sizes) < MAX_HELD
            and len(own) < MAX_HELD_OF_PEER
            and sum(sizes.values()) + size_bytes <= most_bytes
            and sum(own) + size_bytes <= most_bytes // PEER_SHARE
        )

    async def keep_time(self) -> None:
        """Until cancelled."""
        while True:
            await trio.sleep(TRIM_S)
            await self.trim()

    async def trim(self) -> None:
        """What has been held for long enough is the cache's to forget."""
        now_s = trio.current_time()
        for key, held in list(self._held.items()):
            if held.until_s <= now_s and key not in self._coming:
                del self._held[key]
                await self._release(held.holder)


async def is_held(
    stack: Stack,
    exchange: Exchange,
    other: Contact,
    blob: Blob,
    name: bytes,
    sources: tuple[Contact, ...] = (),
) -> bool:
    """Whether another peer holds it now, under this name, for those that its rule allows: from
    here, or from one of these `sources`."""
    others = tuple(each for each in sources if each.peer_id != other.peer_id)[:MAX_KEPT_FROM]
    keep = Keep(exchange.grant, blob.cid, blob.size_bytes, name, others, blob.rule)
    try:
        if other.peer_id == exchange.contact.peer_id:
            why = await _held_here(exchange, keep)
        else:
            why = await _ask(stack, other, blob, keep)
    except (FormationError, IOException, trio.TooSlowError) as error:
        why = str(error) or "gave no answer"
    if why:
        log.info("%s does not hold %s: it %s", other.peer_id, blob.cid, why)
    return not why


async def _held_here(exchange: Exchange, keep: Keep) -> str:
    """This node may be one of its own workers."""
    if exchange.server.hold is None:
        return "holds nothing for others"
    with trio.fail_after(keep_s(keep.size_bytes)):
        return await exchange.server.hold(exchange.contact, keep)


async def _ask(stack: Stack, other: Contact, blob: Blob, keep: Keep) -> str:
    opened = await stack.open(other, PROTOCOL, timeout_s=_DIAL_S)
    try:
        reply = await DataStream(opened, blob).keep(keep)
    finally:
        opened.abort("nothing more is wanted")
    return reply.why if isinstance(reply, BlobRefused) else ""
