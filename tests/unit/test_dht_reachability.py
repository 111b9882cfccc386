"""Whether others can dial us: what they say, and what we believe of it."""

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import ProbeLimits, Reach, Reachability

DHT = DhtParameters()

HERE, LAN, OUTSIDE = "/ip4/127.0.0.1/tcp/1", "/ip4/192.168.1.2/tcp/1", "/ip4/8.8.8.8/tcp/1"


def peer(name: str | int) -> PeerId:
    return PeerId(str(name))


def crowd(count: int) -> list[Contact]:
    return [Contact(peer(n), (f"/ip4/10.0.0.{n}/tcp/1",)) for n in range(count)]


def node(*addresses: str) -> Reachability:
    reachability = Reachability()
    reachability.moved(addresses or (OUTSIDE,), 0.0)
    return reachability


def reach_of(reachability: Reachability) -> Reach:
    return reachability.reach  # which a type checker takes to stay what it was


def after_votes(*votes: bool | None) -> Reachability:
    reachability = node()
    for voter in reachability.wanted(crowd(DHT.voters)):
        if int(voter.peer_id) < len(votes):
            reachability.answered(voter.peer_id, votes[int(voter.peer_id)])
    return reachability


def test_before_it_is_told_where_it_is_a_node_asks_nobody() -> None:
    reachability = Reachability()
    assert reachability.wanted(crowd(5)) == ()
    reachability.dialled_by(peer("bob"), "8.8.8.8")
    reachability.tick(1e9)
    assert reach_of(reachability) is Reach.UNKNOWN
    assert reachability.at_s == float("inf")


def test_who_is_nowhere_to_be_dialled_is_a_client_and_asks_nobody() -> None:
    reachability = Reachability()
    reachability.moved((), 0.0)
    assert reach_of(reachability) is Reach.CLIENT
    assert reachability.wanted(crowd(5)) == ()
    reachability.tick(1e9)
    assert reach_of(reachability) is Reach.CLIENT


Y, N = True, False


@pytest.mark.parametrize(
    ("votes", "at_once", "in_the_end"),
    [
        ((), Reach.UNKNOWN, Reach.UNKNOWN),
        ((None, None, None), Reach.UNKNOWN, Reach.UNKNOWN),
        ((Y,), Reach.SERVER, Reach.SERVER),
        ((N,), Reach.UNKNOWN, Reach.CLIENT),
        ((N, N), Reach.CLIENT, Reach.CLIENT),
        ((N, Y), Reach.UNKNOWN, Reach.UNKNOWN),
        ((N, Y, Y), Reach.SERVER, Reach.SERVER),
        ((Y, N, N), Reach.CLIENT, Reach.CLIENT),
        ((Y, None, N), Reach.SERVER, Reach.SERVER),
    ],
)
def test_the_majority_counts(
    votes: tuple[bool | None, ...], at_once: Reach, in_the_end: Reach
) -> None:
    reachability = after_votes(*votes)
    assert reach_of(reachability) is at_once
    reachability.tick(DHT.round_s)
    assert reach_of(reachability) is in_the_end


def test_a_few_are_asked_and_for_who_did_not_try_another_one() -> None:
    reachability = node()
    known = crowd(20)
    assert reachability.wanted(known[:1]) == tuple(known[:1])
    assert reachability.wanted(known) == tuple(known[1 : DHT.voters])
    assert reachability.wanted(known) == ()
    reachability.answered(peer(0), None)
    assert reachability.wanted(known) == (known[DHT.voters],)
    asked = DHT.voters + 1
    for number in range(1, 20):
        reachability.answered(peer(number), None)
        asked += len(reachability.wanted(known))
    assert reachability.wanted(known) == ()
    assert asked == DHT.max_probe_requests


def test_those_of_other_subnets_are_asked_first() -> None:
    reachability = node()
    neighbours = [Contact(peer(n), (f"/ip4/9.9.9.{n}/tcp/1",)) for n in range(1, 5)]
    far = Contact(peer("far"), ("/ip4/1.1.1.1/tcp/1",))
    assert reachability.wanted(neighbours[:1]) == (neighbours[0],)
    assert reachability.wanted([*neighbours, far]) == (far, neighbours[1])


def test_only_who_was_asked_may_tell_and_only_once() -> None:
    reachability = node()
    reachability.answered(peer("mallory"), False)
    reachability.wanted(crowd(1))
    for _ in range(5):
        reachability.answered(peer(0), False)
    assert reachability.reach is Reach.UNKNOWN  # two that failed would make it a client


@pytest.mark.parametrize(
    ("address", "host", "proves"),
    [
        (OUTSIDE, "9.9.9.9", True),
        (OUTSIDE, "192.168.1.3", False),
        (OUTSIDE, "127.0.0.1", False),
        ("/dns4/gate.example/tcp/1", "192.168.1.3", False),
        ("/dns4/gate.example/tcp/1", "9.9.9.9", True),
        (LAN, "192.168.1.3", True),
        (LAN, "9.9.9.9", True),
        (LAN, "127.0.0.1", False),
        (HERE, "127.0.0.1", True),
    ],
)
def test_who_dials_us_proves_it_for_those_as_far_away(
    address: str, host: str, proves: bool
) -> None:
    reachability = node(address)
    reachability.dialled_by(peer("bob"), host)
    assert (reachability.reach is Reach.SERVER) == proves


def test_one_neighbour_who_dials_us_does_not_outvote_two_who_could_not() -> None:
    reachability = after_votes(False, False)
    reachability.dialled_by(peer("bob"), "9.9.9.9")
    assert reach_of(reachability) is Reach.CLIENT
    for name in ("carol", "dave"):
        reachability.dialled_by(peer(name), "9.9.9.9")
    assert reach_of(reachability) is Reach.SERVER


def test_a_bounded_number_of_witnesses_is_remembered() -> None:
    for most, reach in ((1, Reach.SERVER), (3, Reach.CLIENT)):
        reachability = Reachability(DhtParameters(max_votes=most))
        reachability.moved((OUTSIDE,), 0.0)
        for number in range(2):
            reachability.wanted([Contact(peer(number), (OUTSIDE,))])
        reachability.dialled_by(peer("bob"), "9.9.9.9")
        for number in range(2):
            reachability.answered(peer(number), False)
        assert reachability.reach is reach


def test_it_asks_again_now_and_then_and_until_then_is_what_it_was() -> None:
    reachability = after_votes(True, True, True)
    reachability.tick(DHT.round_s - 1)
    assert reachability.at_s == DHT.round_s
    reachability.tick(DHT.round_s)
    assert reachability.wanted(crowd(9)) == ()
    again_s = DHT.round_s + DHT.server_recheck_s
    assert reachability.at_s == again_s
    reachability.tick(again_s)
    assert reach_of(reachability) is Reach.SERVER
    for voter in reachability.wanted(crowd(DHT.voters)):
        reachability.answered(voter.peer_id, False)
    assert reach_of(reachability) is Reach.CLIENT
    reachability.tick(again_s + DHT.round_s)
    assert reachability.at_s == again_s + DHT.round_s + DHT.client_recheck_s


def test_it_asks_again_at_once_where_it_moves_and_not_where_it_stays() -> None:
    reachability = after_votes(True)
    reachability.moved((OUTSIDE,), 5.0)
    assert reach_of(reachability) is Reach.SERVER
    reachability.moved((LAN,), 6.0)
    assert reach_of(reachability) is Reach.UNKNOWN
    assert len(reachability.wanted(crowd(9))) == DHT.voters
    assert reachability.at_s == 6.0 + DHT.round_s


def test_where_some_addresses_stay_and_reach_as_far_it_is_what_it_was_until_it_is_asked() -> None:
    reachability = after_votes(True)
    reachability.moved((OUTSIDE, LAN), 5.0)
    assert reach_of(reachability) is Reach.SERVER
    for voter in reachability.wanted(crowd(DHT.voters)):
        reachability.answered(voter.peer_id, False)
    assert reach_of(reachability) is Reach.CLIENT
    reachability.moved((OUTSIDE,), 6.0)
    assert reach_of(reachability) is Reach.CLIENT
    # Neighbours have dialled it; whether those outside can is another question.
    near = node(LAN)
    near.dialled_by(peer("bob"), "192.168.1.9")
    assert reach_of(near) is Reach.SERVER
    near.moved((LAN, OUTSIDE), 7.0)
    assert reach_of(near) is Reach.UNKNOWN


# -- for others ---------------------------------------------------------------------------------


def test_of_one_peer_a_few_in_a_minute() -> None:
    dials = ProbeLimits()
    for _ in range(DHT.max_probes_of_one):
        assert dials.admits(peer("bob"), 0.0)
        dials.ended()
    assert not dials.admits(peer("bob"), 59.0)
    assert dials.admits(peer("carol"), 59.0)
    assert dials.admits(peer("bob"), 60.0)


def test_of_all_a_bounded_number_in_a_minute_and_at_once() -> None:
    dials = ProbeLimits()
    for number in range(DHT.max_probes_in_flight):
        assert dials.admits(peer(number), 0.0)
    assert not dials.admits(peer("bob"), 0.0)
    for number in range(DHT.max_probes_in_flight, DHT.max_probes_of_all):
        dials.ended()
        assert dials.admits(peer(number), 0.0)
    dials.ended()
    assert not dials.admits(peer("bob"), 30.0)
    assert dials.admits(peer("bob"), 60.0)


def test_half_is_kept_from_those_who_may_not_have_it() -> None:
    dials = ProbeLimits()
    for number in range(DHT.max_probes_of_all // 2):
        assert dials.counts(peer(number), 0.0, in_half=True)
    assert not dials.counts(peer("bob"), 0.0, in_half=True)
    assert dials.counts(peer("bob"), 0.0)
    for _ in range(DHT.max_probes_in_flight // 2):
        assert dials.begins(in_half=True)
    assert not dials.begins(in_half=True)
    assert dials.begins()
