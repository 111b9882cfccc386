"""Which workers a gateway shows: those that are connected, or answer."""

import asyncio
from dataclasses import replace

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gateway.node_source import MAX_ASKING, Presence
from formation_p2p.records.core.profile import Profile
from tests.support.placement_world import profile


async def asked_out() -> None:
    """All that was begun has ended."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others)


async def test_who_does_not_answer_is_shown_no_more_until_it_announces_itself_anew() -> None:
    dead: set[PeerId] = set()
    asked: list[PeerId] = []

    async def ping(to: Contact) -> None:
        asked.append(to.peer_id)
        if to.peer_id in dead:
            raise Unreachable("it does not answer")

    presence = Presence(ping)
    anna, bob, carol = (profile(f"w{n}") for n in range(3))
    dead |= {anna.peer_id, carol.peer_id}

    def shown(*connected: Profile) -> list[Profile]:
        return presence.there((each, each in connected) for each in (anna, bob, carol))

    assert shown(carol) == [anna, bob, carol]
    await asked_out()
    assert sorted(asked) == sorted((anna.peer_id, bob.peer_id))
    assert shown(carol) == [bob, carol]
    assert shown(anna, carol) == [anna, bob, carol], "it has connected"
    shown()
    await asked_out()
    assert shown() == [anna, bob], "not asked again so soon"
    carol = replace(carol, sequence=carol.sequence + 1)
    assert shown() == [anna, bob, carol]


async def test_workers_are_asked_some_at_a_time() -> None:
    going_on = asyncio.Event()
    asked: list[PeerId] = []

    async def ping(to: Contact) -> None:
        asked.append(to.peer_id)
        await going_on.wait()

    presence = Presence(ping)
    many = [(profile(f"w{n}"), False) for n in range(3 * MAX_ASKING)]
    for _ in range(2):
        assert len(presence.there(many)) == len(many)
        await asyncio.sleep(0)
        assert len(asked) == MAX_ASKING
    going_on.set()
    await asked_out()
    presence.there(many)
    await asked_out()
    assert len(set(asked)) == 2 * MAX_ASKING
    assert presence.there([]) == []
