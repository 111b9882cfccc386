"""What a node asks of its network and of itself: workers, ways to peers, its grant, its trust."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final, NamedTuple, TypeVar, Unpack

from formation_p2p.api.calling import Enterable
from formation_p2p.api.calls import of_calls, referring
from formation_p2p.api.task_result import TaskResult
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, Unauthorized, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.environments.prepare import resolved
from formation_p2p.machine.claim import peers_of
from formation_p2p.machine.clock import moment
from formation_p2p.machine.names import learn_name, named, named_peers, peer_meant
from formation_p2p.peer.core.events import AskRenewal
from formation_p2p.peer.core.story import StoryEntry
from formation_p2p.peer.shell import Shell
from formation_p2p.placement.core.decision import Decision, Discovery
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    Needs,
    PlacementKwargs,
    TaskOptions,
    listing,
    needs_of,
)
from formation_p2p.placement.policies import options_of
from formation_p2p.reach.core.own_addresses import Reached
from formation_p2p.reach.core.paths import Rate, RoundTrip
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.reputation import Standing

T = TypeVar("T")

# All that are asked for a grant have answered, or have not; and the new grant is on the disk.
RENEWAL_S: Final = 60.0
RENEWAL_EVERY_S: Final = 0.1
# A lookup, and an answer of those nearest to the name of the charter.
CHARTER_S: Final = 30.0
CHARTER_EVERY_S: Final = 0.05


class AskingNode(Enterable):
    """The part of `Node` that asks."""

    @property
    def peer_id(self) -> PeerId:
        return self._services.contact.peer_id

    @property
    def reached(self) -> Reached:
        """By which ways others reach this node, as it knows by now: `UNKNOWN` until one of them
        has tried, which takes a second or two."""
        return self._services.entered()[0].reached

    async def workers(self) -> tuple[Profile, ...]:
        """The workers that the network knows of; of very many, some hundreds."""
        found = await self._bridge.explain(None, "any worker")
        return tuple(ranked.profile for ranked in found.decision.ranked)

    @listing(PlacementKwargs)
    async def explain(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        function: Callable[..., object] | None = None,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[PlacementKwargs],
    ) -> Decision:
        """Which workers could run a task of this name with these needs, best first, which of them
        have the packages of its `env`, and why not others. Where the task is a call of `function`,
        what this needs as well, and what code goes along. The keyword arguments are those of
        `PlacementKwargs`; they change `options`. With `wheels="ship"` wheels are downloaded. Raises
        InvalidInput, also where the function cannot be sent to the version of Python asked for."""
        chosen = _placement_options(needs, options, kwargs)
        if function is None:
            return (await self._discovered(await self._resolved(chosen), name)).decision
        chosen = await self._resolved(replace(chosen, needs=of_calls(chosen.needs)))
        modules = referring(function, chosen.needs.python)[1]
        decision = (await self._discovered(chosen, name)).decision
        return replace(decision, code=await asyncio.to_thread(self._code.of, modules))

    @listing(PlacementKwargs)
    async def discover(
        self,
        needs: Needs,
        *,
        name: str = "a task",
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[PlacementKwargs],
    ) -> Discovery:
        """As `explain`, and how the candidates were found."""
        chosen = await self._resolved(_placement_options(needs, options, kwargs))
        return await self._discovered(chosen, name)

    async def _resolved(self, options: TaskOptions) -> TaskOptions:
        self._lifecycle.check_loop()
        return await resolved(options, self._services.with_environment)

    async def _discovered(self, options: TaskOptions, name: str) -> Discovery:
        return await self._bridge.explain(options.scheduling_key(options.needs), name)

    async def story(self, task_id: str) -> tuple[StoryEntry, ...]:
        """The way of a task that was submitted here: which workers were found, asked and refused,
        where it ran, and when. Of the last tasks, some thousands; empty for any other."""
        return await self._bridge.look(lambda shell: shell.peer.story(task_id))

    async def neighbours(self) -> int:
        """How many peers this node knows to be there; 0 until the first, such as a gate, has
        answered."""
        return await self._bridge.look(lambda shell: shell.neighbours)

    async def ping(self, peer: PeerId | str) -> RoundTrip:
        """One round trip to a peer, named as for people: by its id, the end of that, or its name;
        over the best connection there is, or one that is made for it. Raises InvalidInput,
        AmbiguousPeer, Unreachable."""
        from formation_p2p.reach import probing  # as the stack: only where a node runs

        to = await self._contact_of(peer)
        return await self._bridge.perform(lambda shell: probing.ping(shell.stack, to))

    async def measure_rate(self, peer: PeerId | str) -> Rate:
        """How fast bytes come from a peer: 16 MiB, or what comes in 3 s. Both must be members of
        the network, and a node does that for one peer at a time, once in 4 s. Raises InvalidInput,
        AmbiguousPeer, Unreachable; RemoteError where the peer refuses, with its reason."""
        from formation_p2p.reach import probing  # likewise

        to = await self._contact_of(peer)
        return await self._bridge.perform(
            lambda shell: probing.measure_rate(shell.stack, to, shell.exchange.grant)
        )

    async def troubles(self) -> tuple[str, ...]:
        """What peers show to be wrong with this machine, and what to do: a clock that is off, or
        another node with this one's identity."""
        return await self._bridge.look(lambda shell: shell.stack.witness.troubles)

    async def incompatible(self) -> Mapping[PeerId, str]:
        """The peers that this node refused lately since their version of the protocols is another
        than its own, and which side is to be upgraded. Of the latest, some."""
        return await self._bridge.look(lambda shell: dict(shell.stack.incompatible))

    async def renew(self) -> int:
        """Have this node's grant renewed now, by a node that has the network's root key or by an
        inviter of the charter. Returns when it ends, in Unix time. Raises Unauthorized with the
        reason where none renews it, or none answers within a minute."""
        before = await self._bridge.look(_ask_renewal)

        def is_decided(seen: _Renewal) -> bool:
            has_failed = seen.tried != before.tried and bool(seen.failed)
            return has_failed or seen.expires_unix_s != before.expires_unix_s

        seen = await self._until(_renewal, is_decided, RENEWAL_S, RENEWAL_EVERY_S)
        if seen is not None and seen.expires_unix_s != before.expires_unix_s:
            return seen.expires_unix_s
        none = f"no peer has renewed it within {RENEWAL_S:.0f} s; see that a gate runs"
        raise Unauthorized(f"the grant is not renewed: {none if seen is None else seen.failed}")

    async def offer_charter(self, raw: bytes) -> int:
        """Go by a charter that its signers have made, and hand it to others. Returns how many have
        taken it at once; the rest hear of it from them. Raises InvalidInput where it does not
        count, and says why. See docs/explanation/charter.md."""
        await self._bridge.look(lambda shell: shell.offer_charter(raw))
        spread = await self._until(
            lambda shell: shell.performer.charter_spread,
            lambda seen: seen is not None,
            CHARTER_S,
            CHARTER_EVERY_S,
        )
        if spread is None:
            return 0  # it counts here, and goes on from here
        if spread.refused:
            raise InvalidInput("charter", f"it is refused: {spread.refused}")
        return spread.holders

    async def trust(self) -> tuple[Standing, ...]:
        """What this node has learnt of each peer, by itself and from others; the most trusted
        first. See docs/explanation/trust.md."""
        look = self._bridge.look
        return await look(lambda shell: shell.peer.reputation.standings(moment()))

    async def report_wrong(self, worker: PeerId | TaskResult) -> None:
        """Report a worker, or that of a result, for a false result: as a caller who can tell
        should.

        It weighs as much as half of all that is remembered of a peer. Raises InvalidInput for a
        result without a worker, and for what is neither a peer id nor the name of one that is
        known; AmbiguousPeer where several have the name.
        """
        self._lifecycle.check_loop()
        accused = worker.worker if isinstance(worker, TaskResult) else worker
        if accused is None:
            raise InvalidInput("worker", "no worker brought this result; there is none to blame")
        try:
            peer_id = peer_meant(accused, field="worker")
        except (TypeError, AttributeError) as error:
            raise InvalidInput("worker", f"{accused!r} is not a text") from error
        if peer_id is None:
            raise InvalidInput("worker", f"{accused!r} is neither a peer id nor a name known here")
        self._services.call(
            lambda shell: shell.peer.reputation.note(peer_id, Experience.WRONG, moment())
        )

    async def _contact_of(self, peer: str) -> Contact:
        """Where the peer is that a person means: a worker, a gate, a neighbour, or one whose name
        is known; nodes of this home are meant only where no other has the name. Raises
        InvalidInput, AmbiguousPeer; Unreachable for a peer that is not found."""
        self._lifecycle.check_loop()
        if not isinstance(peer, str):
            raise InvalidInput("peer", f"{peer!r} is not a text")
        own, look = self.peer_id, self._bridge.look
        ours = {own, *await asyncio.to_thread(peers_of, self._services.home)}
        met = await look(lambda shell: shell.met)
        meant = peer_meant(peer, (named_peers() | met) - ours)
        seen = None if meant is None else await self._seen(meant)
        if seen is None and meant != own:
            # Of those that announce themselves, which takes a lookup or two.
            found = await self._bridge.explain(None, "any worker")
            profiles = {ranked.profile.peer_id: ranked.profile for ranked in found.decision.ranked}
            for profile in profiles.values():
                learn_name(profile.peer_id, profile.name)
            meant = meant or peer_meant(peer, profiles.keys() - ours)
            meant = meant or peer_meant(peer, {own}) or peer_meant(peer, ours)
            if meant is not None and meant in profiles:
                seen = Contact(meant, profiles[meant].addresses)
        if meant == own:
            raise InvalidInput("peer", f"{named(own)} is this node itself; name another")
        if seen is not None:
            return seen
        if not await look(lambda shell: shell.neighbours):
            raise Unreachable(
                f"{peer} is not found, since no peer of this network answers: its gates are down, "
                "or this machine is offline; `formation doctor` says which"
            )
        if meant is None:
            what = "neither a peer id nor the name or the end of the id of one that is known"
            raise InvalidInput("peer", f"{peer!r} is {what}; `formation workers` shows the workers")
        raise Unreachable(
            f"{named(meant)} is not found: no neighbour of this node knows it, and it does not "
            "announce itself as a worker; run `formation status` on that machine"
        )

    async def _seen(self, peer: PeerId) -> Contact | None:
        return await self._bridge.look(lambda shell: shell.contact_of(peer))

    async def _until(
        self, at: Callable[[Shell], T], holds: Callable[[T], bool], within_s: float, every_s: float
    ) -> T | None:
        """What `at` returns on the node's thread, once that `holds`; None where it does not."""
        try:
            async with asyncio.timeout(within_s):
                while True:
                    await asyncio.sleep(every_s)
                    if holds(seen := await self._bridge.look(at)):
                        return seen
        except TimeoutError:
            return None


class _Renewal(NamedTuple):
    tried: int
    expires_unix_s: int
    failed: str


def _renewal(shell: Shell) -> _Renewal:
    peer = shell.peer
    return _Renewal(peer.renewal.tried, peer.grant.expires_unix_s, peer.renewal.failed)


def _ask_renewal(shell: Shell) -> _Renewal:
    """How it was before."""
    before = _renewal(shell)
    shell.feed(AskRenewal())
    return before


def _placement_options(needs: Needs, options: TaskOptions, kwargs: PlacementKwargs) -> TaskOptions:
    options = replace(options, needs=needs_of(needs)[0])
    return options_of(kwargs, options, takes=PlacementKwargs, call="explain")
