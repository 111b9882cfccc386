"""How others reach a node, as a person reads it."""

import pytest

from formation_p2p.core.identity import PeerId
from formation_p2p.machine.names import named
from formation_p2p.reach.core.own_addresses import Reached, Way
from formation_p2p.reach.reach_in_words import reach_in_json, reach_in_words

LAN = "/ip4/192.168.1.2/tcp/4001"
GATE = PeerId("12D3KooWJTk7ReiAQJszgpvFDMeNpVo23VYX8wb8N9qbBpagdxgx")


@pytest.mark.parametrize(
    ("reached", "words"),
    [
        (Reached(Way.DIRECT, (LAN,)), f"others dial it at {LAN}"),
        (
            Reached(Way.RELAYED, (), (GATE,)),
            f"others reach it through the gate {named(GATE)}, or directly where routers let them",
        ),
        (
            Reached(Way.RELAYED, (LAN,), (GATE, GATE)),
            f"others reach it through the gate {named(GATE)} and the gate {named(GATE)}, "
            f"or directly where routers let them. On its own network it is at {LAN}",
        ),
        (Reached(Way.LOCAL, (LAN,)), f"those on its own network dial it at {LAN}"),
        (Reached(Way.SILENT), "it does not listen, and asks others only"),
        (Reached(Way.UNKNOWN), "not known yet: no other node has tried"),
    ],
)
def test_each_way_is_said_in_plain_words(reached: Reached, words: str) -> None:
    assert reach_in_words(reached) == words
    assert reach_in_json(reached)["words"] == words


@pytest.mark.parametrize("way", [Way.LOCAL, Way.NOWHERE])
def test_where_others_have_no_way_it_says_what_to_do(way: Way) -> None:
    words = reach_in_words(Reached(way, (LAN,), is_shut=True))
    assert LAN in words
    assert "start a gate" in words
    assert "--announce" in words
