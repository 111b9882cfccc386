"""Small clusters on a virtual clock, and everything that can befall them.

    python -m simulations.chaos --seeds 1..1000
    python -m simulations.chaos --seed 17 --trace

Every peer is the shipped one. The seed draws the machines, the jobs and the faults; after it the
invariants are checked (`simulations/invariants.py`). The same seed gives the same story.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import re
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from formation_p2p.assembly import Peer, PeerEffect, PeerParameters
from formation_p2p.dht.core.rpc import DhtEvent
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.peer.core.events import Tick
from simulations.cluster import Cluster, draw_cluster
from simulations.faults import Faults
from simulations.homes import NO_NAT, Nat, nat_arguments, nat_of
from simulations.invariants import Happened, Invariants, Violation
from simulations.simulator.world import World

# After the faults, the work must be done within this: the jobs have hundreds of seconds of it,
# and a cluster may be left with one core.
DONE_S: Final = 1500.0
# It is looked this often whether it is.
LOOK_S: Final = 5.0
# ...and then leases are given back, or run out, and what ran under them is ended.
SETTLE_S: Final = 20.0
# Announcements are most of what so small a cluster says: two of its dozen peers are enough to
# leave each with.
PARAMETERS: Final = PeerParameters(discovery=DiscoveryParameters(replicas=2), validate=True)
# Who does more than this in so little virtual time is in a loop: a seed takes some 5,000.
MAX_STEPS: Final = 200_000
# Of a violation's story.
LAST_SHOWN: Final = 40
MAX_SHOWN_CHARS: Final = 400


@dataclass(frozen=True, slots=True)
class Told:
    """What came of one seed: `invariant` is None where all held."""

    seed: int
    invariant: str | None = None
    what: str = ""
    story: tuple[str, ...] = ()
    seen: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    virtual_s: float = 0.0


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    if arguments.seed is not None:
        seeds = range(arguments.seed, arguments.seed + 1)
    else:
        seeds = arguments.seeds
    nat = nat_of(arguments)
    began_s = time.perf_counter()
    figures: dict[str, object] = {"seeds": len(seeds), "violations": 0, "failing_seeds": []}
    failing: list[int] = []
    seen: Counter[str] = Counter()
    faults: Counter[str] = Counter()
    for reported in _tell_all(seeds, arguments.jobs, nat, trace=arguments.trace):
        seen.update(reported.seen)
        faults.update(reported.faults)
        if reported.invariant is not None:
            failing.append(reported.seed)
            out = sys.stderr if arguments.json else sys.stdout
            print(f"seed {reported.seed}: {reported.invariant}: {reported.what}", file=out)
            for line in reported.story:
                print(f"    {line}", file=out)
            print(f"    again: {_again(reported.seed, nat)}", file=out, flush=True)
    figures |= {"violations": len(failing), "failing_seeds": failing}
    if arguments.json:
        took_s = round(time.perf_counter() - began_s, 1)
        print(json.dumps(figures | {"seen": seen, "faults": faults, "wall_s": took_s}))
    else:
        print(f"{len(seeds)} seeds, {len(failing)} violations {failing or ''}".rstrip())
        print("seen: " + ", ".join(f"{name} {count}" for name, count in sorted(seen.items())))
        print("faults: " + ", ".join(f"{name} {n}" for name, n in sorted(faults.items())))
    return 1 if failing else 0


def run_seed(
    seed: int,
    *,
    trace: bool = False,
    peer: type[Peer] = Peer,
    parameters: PeerParameters = PARAMETERS,
    nat: Nat = NO_NAT,
) -> Told:
    """One seed from its beginning to the check at its end, with this kind of peer."""
    world = World(seed, lean=True, parameters=parameters)  # streams encode all the same
    world.peer = peer
    world.max_steps = MAX_STEPS
    invariants = Invariants(world)
    if trace:
        watch = world.witness

        def watched(*seen: object) -> None:
            watch(*seen)  # type: ignore[arg-type]
            if _is_shown(invariants.story[-1]):
                print(shown(invariants.story[-1], world))

        world.witness = watched
    cluster: Cluster | None = None
    faults: Faults | None = None
    with _collector_paused():
        try:
            cluster = draw_cluster(seed, world, nat)
            faults = Faults(cluster, invariants)
            if trace:
                faults.reported = lambda what: print(f"{world.now_s:9.3f} == {what}")
            faults_end_s = world.now_s + faults.schedule()
            while world.now_s < faults_end_s:
                world.elapse(min(LOOK_S, faults_end_s - world.now_s))
            faults.stop()
            stopped_s = world.now_s
            while not invariants.is_over(cluster) and world.now_s < stopped_s + DONE_S:
                world.elapse(LOOK_S)
            world.elapse(SETTLE_S)
            invariants.at_the_end(cluster)
        except Exception as error:  # noqa: BLE001
            # Whatever a peer raises is a violation, and so is what a check finds; it is told.
            if isinstance(error, Violation):
                invariant, what, about = error.invariant, error.what, error.about
            else:
                invariant, what, about = "no peer raises or spins", traceback.format_exc(), ()
            story = tuple(_last(invariants.story, about, world))
            return Told(seed, invariant, what, story)
    seen = invariants.seen
    if world.routers is not None:
        seen.update(world.routers.made)
    return Told(seed, seen=seen, faults=faults.happened, virtual_s=world.now_s)


def _tell_all(seeds: Iterable[int], jobs: int, nat: Nat, *, trace: bool) -> Iterator[Told]:
    if jobs == 1 or trace:
        for seed in seeds:
            yield run_seed(seed, trace=trace, nat=nat)
        return
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(partial(run_seed, nat=nat), seeds)


def _again(seed: int, nat: Nat) -> str:
    kinds = ",".join(f"{kind}={weight}" for kind, weight in nat.kinds.items())
    behind = f" --nat {nat.share} --nat-kinds {kinds}" if nat.share else ""
    return f"python -m simulations.chaos --seed {seed}{behind} --trace"


def _last(story: Iterable[Happened], about: tuple[str, ...], world: World) -> list[str]:
    """The last that happened about any of these; all that was not the DHT's, if there are none."""
    ids = [world.nodes[word].identity.peer_id if word in world.nodes else word for word in about]
    lines: list[str] = []
    for each in story:
        if _is_shown(each):
            reported = shown(each, world, ids).split("\n")
            lines += reported if len(reported) > 1 or not ids or _names(each.event, ids) else []
    return lines[-LAST_SHOWN:]


def _names(thing: object, words: Iterable[str]) -> bool:
    text = repr(thing)
    return any(re.search(rf"{re.escape(word)}(?!\d)", text) for word in words)


def _is_shown(happened: Happened) -> bool:
    if isinstance(happened.event, DhtEvent):
        return bool(happened.effects) and any(_is_told(effect) for effect in happened.effects)
    return not isinstance(happened.event, Tick) or any(_is_told(e) for e in happened.effects)


def _is_told(effect: PeerEffect) -> bool:
    return type(effect).__module__.split(".")[1] != "dht"


def shown(happened: Happened, world: World, about: Sequence[str] = ()) -> str:
    """What a node was told, and what it did; by names, not by peer ids. Of what it did all, or
    what names any of these."""
    reported = [f"{happened.at_s:9.3f} {happened.node}/{happened.incarnation}: {happened.event!r}"]
    effects = [e for e in happened.effects if _is_told(e) and (not about or _names(e, about))]
    text = "\n".join(reported + [f"          -> {effect!r}" for effect in effects])
    for name, node in world.nodes.items():
        text = text.replace(repr(node.contact), name).replace(node.identity.peer_id, name)
    return "\n".join(_short(line) for line in text.split("\n"))


def _short(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else text[:MAX_SHOWN_CHARS] + "…"


@contextmanager
def _collector_paused() -> Iterator[None]:
    """A story's objects all go at its end, and what was there before it stays."""
    was_enabled = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.chaos",
        description="Whatever fails: every task ends once, and nothing is held or run twice.",
    )
    add = parser.add_argument
    add("--seeds", type=_seeds, default=range(1, 101), metavar="A..B", help="both included")
    add("--seed", type=int, help="this one alone")
    add("--trace", action="store_true", help="print all that happens but for the DHT's part")
    nat_arguments(parser)
    add("--jobs", type=int, default=1, help="so many processes (default: 1)")
    add("--json", action="store_true", help="print JSON")
    return parser


def _seeds(text: str) -> range:
    first, _, last = text.partition("..")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text} is not A..B, as in 1..100") from error
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text} has no seed in it")
    return seeds


if __name__ == "__main__":
    sys.exit(main())
