"""Lookups among liars: what a record's reader still finds, and what lying costs him.

    python -m simulations.hostile --nodes 10000 --liars 0 0.2 --seed 1
    python -m simulations.hostile --nodes 3000 --liars 0.2 --lie collude --paths 2 --json

The shipped `Lookup` over shipped routing tables, laid out by the seed. No peers, messages or
clocks beyond that: an honest peer names the 20 nearest in its table, a liar does as `--lie` says,
and answers take the time that a wide-area network lets them take. For each key one honest peer
looks up who is to hold a record, and another one looks it up. It is found if one of those whom
the reader asked is honest and holds it. Liars take every record and never hand one out.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Final, Protocol

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.dht.core.lookup import Lookup, PeerState
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.routing import RoutingTable

# A hundred thousand random keys of 64 bits are still all different.
BITS: Final = 64
DHT: Final = DhtParameters()
K: Final = DHT.k
TIMEOUT_S: Final = DHT.request_timeout_s
# Half of all answers take less than 80 ms; one in forty takes more than 320 ms.
MEDIAN_S: Final = 0.08
SPREAD: Final = 0.7

LIES: Final = {
    "silent": "never answers; a peer that has died is no different",
    "empty": "answers, and names nobody",
    "invent": "names 20 peers next to the key that do not exist, others each time",
    "collude": "names the 20 nearest of its accomplices",
    "misplace": "names the 20 nearest honest peers, at addresses where they are not",
    "truncate": "names one of those that it should name",
    "slow": "names all that it should, just before the timeout",
}


class Searching(Protocol):
    """What this simulation wants of a lookup."""

    @property
    def asked(self) -> int: ...
    @property
    def finished(self) -> bool: ...
    def next_peers(self) -> tuple[Contact, ...]: ...
    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None: ...
    def failed(self, peer_id: PeerId) -> None: ...
    def closest(self) -> tuple[Contact, ...]: ...


Start = Callable[[Key, Sequence[Contact], PeerId], Searching]
"""Begins a lookup: for a key, from these seeds, by this peer."""


class Credulous(Lookup):
    """Everyone's word is good for ever, and a peer's first address is the only one."""

    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None:
        self._settle(peer_id, PeerState.ANSWERED, 1)
        unknown = [contact for contact in closer if contact.peer_id not in self._known]
        self._hear_of(unknown, self._table)


class DisjointPaths:
    """Several lookups, each with its share of the seeds. Each peer is asked by one of them; the
    others learn that it is there, and not whom it named.

    Source: S/Kademlia, section 4.4; rust-libp2p's `ClosestDisjointPeersIter`.
    """

    def __init__(self, lookups: Sequence[Searching], key: Key, width: int) -> None:
        self._lookups = lookups
        self._key = key
        self._width = width
        self._waiting: dict[PeerId, list[Searching]] = {}
        self._answers: dict[PeerId, bool] = {}

    @property
    def asked(self) -> int:
        return len(self._waiting) + len(self._answers)

    @property
    def finished(self) -> bool:
        return all(lookup.finished for lookup in self._lookups)

    def next_peers(self) -> tuple[Contact, ...]:
        new: list[Contact] = []
        for lookup in self._lookups:
            while peers := lookup.next_peers():
                for contact in peers:
                    if contact.peer_id in self._answers:
                        _settle(lookup, contact.peer_id, self._answers[contact.peer_id])
                    elif contact.peer_id in self._waiting:
                        self._waiting[contact.peer_id].append(lookup)
                    else:
                        self._waiting[contact.peer_id] = [lookup]
                        new.append(contact)
        return tuple(new)

    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None:
        self._answers[peer_id] = True
        first, *others = self._waiting.pop(peer_id)
        first.answered(peer_id, closer)
        for lookup in others:
            lookup.answered(peer_id)

    def failed(self, peer_id: PeerId) -> None:
        self._answers[peer_id] = False
        for lookup in self._waiting.pop(peer_id):
            lookup.failed(peer_id)

    def closest(self) -> tuple[Contact, ...]:
        found = {contact for lookup in self._lookups for contact in lookup.closest()}
        nearest = sorted(found, key=lambda contact: int(contact.peer_id) ^ self._key)
        return tuple(nearest[: self._width])


def _settle(lookup: Searching, peer_id: PeerId, answered: bool) -> None:
    if answered:
        lookup.answered(peer_id)
    else:
        lookup.failed(peer_id)


class World:
    """Peers with random keys, a share of them liars; and the keys that are looked up, each with
    `sybils` liars more, whose ids were ground until they lay nearer to it than anyone's; they
    are on so many `machines`, each in a /24 of its own. A share of the peers may be in the public
    /16 of one `campus`."""

    def __init__(
        self,
        nodes: int,
        liars: float,
        lie: str,
        seed: int,
        *,
        keys: int,
        sybils: int = 0,
        machines: int = 1,
        campus: float = 0.0,
    ) -> None:
        rng = random.Random(f"{seed}/{nodes}/{liars}")
        drawn = [Key(rng.getrandbits(BITS)) for _ in range(nodes)]
        lying = set(rng.sample(drawn, round(nodes * liars)))
        self.looked_up = [Key(rng.getrandbits(BITS)) for _ in range(keys)]
        everyone = set(drawn)
        self._contacts: dict[Key, Contact] = {}
        for peer in drawn[: round(nodes * campus)]:
            address = f"/ip4/129.132.{peer % 256}.{peer // 256 % 256}/tcp/{peer % 50_000}"
            self._contacts[peer] = Contact(_id_of(peer), (address,))
        for key in self.looked_up:
            gap = min(peer ^ key for peer in drawn)
            ground = {Key(key ^ rng.randrange(gap)) for _ in range(sybils)}
            for number, peer in enumerate(sorted(ground)):
                address = f"/ip4/45.9.{number % machines}.1/tcp/{number + 1}"
                self._contacts[peer] = Contact(_id_of(peer), (address,))
            lying |= ground
            everyone |= ground
        self.lying = frozenset(lying)
        self.honest = sorted(everyone - lying)
        self._everyone = sorted(everyone)
        self._exists = everyone
        self._liars = sorted(lying)
        self._lie = lie
        self._seed = seed
        self._invented = 0
        self._tables: dict[Key, RoutingTable] = {}

    def table(self, peer: Key) -> RoutingTable:
        """Of each bucket 20 peers by chance, as the caps of subnets allow, or all there are."""
        if peer not in self._tables:
            table = RoutingTable(peer, key_of=_key_of)
            rng = random.Random(peer ^ self._seed)
            for bit in range(BITS):
                low = ((peer >> bit) ^ 1) << bit
                bucket = _subtree(self._everyone, low, bit)
                for other in rng.sample(bucket, min(len(bucket), 4 * K)):
                    table.saw(self._contact(Key(other)), 0.0)
            self._tables[peer] = table
        return self._tables[peer]

    def answer(
        self, asked: Contact, key: Key, rng: random.Random
    ) -> tuple[float, Sequence[Contact] | None]:
        """After how long a peer answers, and whom it names; None if it does not."""
        peer = _key_of(asked.peer_id)
        takes_s = min(MEDIAN_S * rng.lognormvariate(0, SPREAD), TIMEOUT_S / 2)
        if peer not in self._exists or asked != self._contact(peer):
            return TIMEOUT_S, None
        if peer not in self.lying:
            return takes_s, self.table(peer).closest(key, K)
        match self._lie:
            case "silent":
                return TIMEOUT_S, None
            case "empty":
                return takes_s, ()
            case "invent":
                return takes_s, list(self._invent(key))
            case "collude":
                return takes_s, [self._contact(each) for each in _nearest(self._liars, key)]
            case "misplace":
                nearest = _nearest(self.honest, key)
                return takes_s, [Contact(_id_of(each), (_address(each + 1),)) for each in nearest]
            case "truncate":
                return takes_s, [rng.choice(self.table(peer).closest(key, K))]
            case _:
                return TIMEOUT_S * 0.97, self.table(peer).closest(key, K)

    def _contact(self, peer: Key) -> Contact:
        if peer not in self._contacts:
            self._contacts[peer] = Contact(_id_of(peer), (_address(peer),))
        return self._contacts[peer]

    def _invent(self, key: Key) -> Iterator[Contact]:
        for _ in range(K):
            self._invented += 1
            yield self._contact(Key(key ^ self._invented))


def _address(number: int) -> str:
    """Anywhere in the world, and hardly ever twice in the same /16."""
    a, b, c = random.Random(number).randbytes(3)
    return f"/ip4/{130 + number % 60}.{a}.{b}.{c}/tcp/4001"


def _id_of(peer: Key) -> PeerId:
    return PeerId(str(peer))


def _key_of(peer_id: PeerId) -> Key:
    return Key(int(peer_id))


def _subtree(ordered: Sequence[Key], low: int, bits: int) -> Sequence[Key]:
    """Those that differ from `low` in the last bits alone."""
    return ordered[bisect_left(ordered, low) : bisect_left(ordered, low + (1 << bits))]


def _nearest(ordered: Sequence[Key], key: Key) -> list[Key]:
    """The K of them nearest to a key: all in the smallest subtree that holds as many, sorted."""
    for bit in range(BITS + 1):
        low = (key >> bit) << bit
        subtree = _subtree(ordered, low, bit)
        if len(subtree) >= K or bit == BITS:
            break
    return sorted(subtree, key=lambda peer: peer ^ key)[:K]


def run(
    world: World, lookup: Searching, key: Key, rng: random.Random
) -> tuple[float, frozenset[Key]]:
    """Drive a lookup to its end. Returns its virtual seconds, and who answered."""
    now_s, count = 0.0, 0
    answers: list[tuple[float, int, PeerId, Sequence[Contact] | None]] = []
    answered: set[Key] = set()
    while True:
        for asked in lookup.next_peers():
            count += 1
            takes_s, closer = world.answer(asked, key, rng)
            heapq.heappush(answers, (now_s + takes_s, count, asked.peer_id, closer))
        if lookup.finished:
            return now_s, frozenset(answered)
        now_s, _, peer_id, closer = heapq.heappop(answers)
        if closer is None:
            lookup.failed(peer_id)
        else:
            answered.add(_key_of(peer_id))
            lookup.answered(peer_id, closer)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """`requests_*` are means. `honest_holders` is how many of those written to were honest, and
    `lost_share` the share of records that no honest peer holds."""

    lie: str
    liars: float
    sybils: int
    paths: int
    found_share: float
    requests_read: float
    read_p50_s: float
    read_p95_s: float
    requests_write: float
    write_p50_s: float
    write_p95_s: float
    honest_holders: float
    lost_share: float


def measure(
    world: World, reader: Start, writer: Start, rng: random.Random, reads: int
) -> dict[str, float]:
    found: list[bool] = []
    holders: list[int] = []
    costs: dict[str, list[tuple[int, float]]] = {"read": [], "write": []}
    for key in world.looked_up:
        for _ in range(reads):
            author, asker = rng.sample(world.honest, 2)
            writing = writer(key, world.table(author).closest(key, K), _id_of(author))
            takes_s, _ = run(world, writing, key, rng)
            costs["write"].append((writing.asked, takes_s))
            held_by = {_key_of(each.peer_id) for each in writing.closest()} - world.lying
            holders.append(len(held_by))
            reading = reader(key, world.table(asker).closest(key, K), _id_of(asker))
            takes_s, answered = run(world, reading, key, rng)
            costs["read"].append((reading.asked, takes_s))
            found.append(not held_by.isdisjoint(answered))
    measured = {
        "found_share": statistics.fmean(found),
        "honest_holders": statistics.fmean(holders),
        "lost_share": holders.count(0) / len(holders),
    }
    for what, each in costs.items():
        taken_s = sorted(takes_s for _, takes_s in each)
        measured[f"requests_{what}"] = statistics.fmean(asked for asked, _ in each)
        measured[f"{what}_p50_s"] = taken_s[len(taken_s) // 2]
        measured[f"{what}_p95_s"] = taken_s[len(taken_s) * 95 // 100]
    return {name: round(value, 4) for name, value in measured.items()}


def starts(width: int, alpha: int, spare: int, *, paths: int = 1, credulous: bool = False) -> Start:
    """How lookups of a kind begin; with several paths each gets its share of alpha."""
    kind = Credulous if credulous else Lookup

    def start(key: Key, seeds: Sequence[Contact], own: PeerId) -> Searching:
        lookups = [
            kind(
                key,
                seeds[path::paths],
                own=own,
                width=width,
                alpha=max(alpha // paths, 1),
                spare=spare,
                key_of=_key_of,
            )
            for path in range(paths)
        ]
        return lookups[0] if paths == 1 else DisjointPaths(lookups, key, width)

    return start


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m simulations.hostile", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--liars", type=float, nargs="+", default=[0.0, 0.2], metavar="SHARE")
    parser.add_argument("--lie", nargs="+", choices=LIES, default=list(LIES))
    parser.add_argument("--sybils", type=int, default=0, help="ids ground near each key")
    parser.add_argument("--machines", type=int, default=1, help="that those ids are on")
    parser.add_argument("--campus", type=float, default=0.0, help="the share of peers in one /16")
    parser.add_argument("--paths", type=int, default=1, help="disjoint paths of a reader")
    parser.add_argument("--credulous", action="store_true", help="without what is done about lies")
    parser.add_argument("--read", type=int, nargs=3, default=[5, 4, 1], metavar="N")
    parser.add_argument("--write", type=int, nargs=3, default=[8, DHT.alpha, 0], metavar="N")
    parser.add_argument("--keys", type=int, default=50, help="looked up, four times each")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.epilog = "--read and --write: width, alpha and spare of the lookups.\n" + "\n".join(
        f"{lie}: {meaning}" for lie, meaning in LIES.items()
    )
    given = parser.parse_args(arguments)
    reader = starts(*given.read, paths=given.paths, credulous=given.credulous)
    writer = starts(*given.write, credulous=given.credulous)
    if not given.json:
        print(
            "lie       liars sybils | found  asked   p50 s   p95 s | write  p50 s  p95 s | holders"
        )
    for lie in given.lie:
        for liars in given.liars:
            world = World(
                given.nodes,
                liars,
                lie,
                given.seed,
                keys=given.keys,
                sybils=given.sybils,
                machines=given.machines,
                campus=given.campus,
            )
            figures = measure(world, reader, writer, random.Random(given.seed), 4)
            about = {"lie": lie, "liars": liars, "sybils": given.sybils, "paths": given.paths}
            measured = Measured(**about, **figures)  # type: ignore[arg-type]  # by their names
            line = json.dumps(asdict(measured)) if given.json else _row(measured)
            print(line, flush=True)


def _row(m: Measured) -> str:
    return (
        f"{m.lie:9} {m.liars:5.0%} {m.sybils:6} | {m.found_share:5.1%} {m.requests_read:6.1f}"
        f" {m.read_p50_s:7.2f} {m.read_p95_s:7.2f} | {m.requests_write:5.1f} {m.write_p50_s:6.2f}"
        f" {m.write_p95_s:6.2f} | {m.honest_holders:7.2f}"
    )


if __name__ == "__main__":
    main()
