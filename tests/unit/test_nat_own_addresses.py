"""Where others reach a node: what it believes of what they see, and what it tells."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.reach.core.own_addresses import (
    AGREEING,
    MAX_CANDIDATES,
    MAX_CIRCUITS,
    MAX_OBSERVERS,
    OwnAddresses,
    Reached,
    Way,
)
from formation_p2p.reach.core.paths import Path, Rate
from formation_p2p.records.core.addresses import MAX_ADDRESSES

GATE, GATE_HOST = PeerId("gate"), "9.9.9.9"
LAN, OUTSIDE = "/ip4/192.168.1.2/tcp/4001", "/ip4/8.8.8.8/tcp/4001"
MAPPED = "/ip4/8.8.8.8/tcp/50123"
LAN6, OUTSIDE6 = "/ip6/fd00::2/tcp/4001", "/ip6/2a00:1450::2/tcp/4001"
CIRCUIT = "/ip4/9.9.9.9/tcp/4001/p2p/gate/p2p-circuit"


def behind_a_router(*addresses: str) -> OwnAddresses:
    own = OwnAddresses(gates=[GATE])
    own.listening(addresses or (LAN,))
    return own


def seen(own: OwnAddresses, by: str, host: str, address: str, *, is_exact: bool = False) -> None:
    own.observed(PeerId(by), host, address, is_exact=is_exact)


# In functions, since a type checker takes what was compared to stay what it was.


def direct(own: OwnAddresses) -> tuple[str, ...]:
    return own.direct


def told(own: OwnAddresses) -> tuple[str, ...]:
    return own.announced


def observed_now(own: OwnAddresses) -> tuple[str, ...]:
    return own.observed_now


def hosts(own: OwnAddresses) -> tuple[str, ...]:
    return own.seen_hosts


def test_a_node_tells_where_it_listens_public_addresses_first() -> None:
    own = behind_a_router(LAN, OUTSIDE)
    assert direct(own) == told(own) == (OUTSIDE, LAN)
    own.listening((LAN,))
    assert direct(own) == told(own) == (LAN,)


def test_what_the_owner_says_is_all_that_is_told_beside_circuits() -> None:
    own = OwnAddresses([OUTSIDE], [GATE])
    assert told(own) == (OUTSIDE,)
    own.listening((LAN,))
    seen(own, GATE, GATE_HOST, "/ip4/7.7.7.7/tcp/9")
    assert direct(own) == told(own) == (OUTSIDE,)
    own.circuits([CIRCUIT])
    assert (direct(own), told(own)) == ((OUTSIDE,), (OUTSIDE, CIRCUIT))


def test_where_a_gate_sees_us_is_told_once_a_peer_has_dialled_it() -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, "/ip4/8.8.8.8/tcp/31234")
    assert hosts(own) == ("8.8.8.8",)
    assert observed_now(own) == ()  # the kernel chose that port for one connection
    assert (direct(own), told(own)) == ((LAN, OUTSIDE), (LAN,))
    own.found_by_dial_back(OUTSIDE)
    assert direct(own) == told(own) == (OUTSIDE, LAN)
    own.found_by_dial_back(OUTSIDE, reached=False)
    assert told(own) == (LAN,)


def test_the_port_that_a_router_maps_ours_to_is_a_candidate_too() -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, MAPPED, is_exact=True)
    assert observed_now(own) == (MAPPED,)
    assert direct(own) == (LAN, MAPPED, OUTSIDE)
    own.reach(Reach.SERVER)  # one of them was dialled
    assert told(own) == (MAPPED, OUTSIDE, LAN)
    own.found_by_dial_back(MAPPED)  # this one
    assert told(own) == (MAPPED, LAN)
    own.reach(Reach.CLIENT)
    assert told(own) == (MAPPED, LAN)


def test_what_was_never_seen_is_not_found_by_a_dial_back() -> None:
    own = behind_a_router()
    own.found_by_dial_back(OUTSIDE)
    seen(own, GATE, GATE_HOST, MAPPED)
    assert told(own) == (LAN,)


def test_peers_are_believed_where_those_of_several_networks_agree() -> None:
    own = behind_a_router()
    for number in range(AGREEING + 2):  # machines of one provider
        seen(own, f"liar {number}", f"5.5.{number}.1", "/ip4/6.6.6.6/tcp/4001")
    assert direct(own) == (LAN,)
    for number in range(AGREEING):
        assert direct(own) == (LAN,)
        seen(own, f"peer {number}", f"{number + 11}.1.1.1", MAPPED, is_exact=True)
    assert direct(own) == (LAN, MAPPED, OUTSIDE)


def test_one_port_is_believed_where_several_see_it_and_not_for_its_host_alone() -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, MAPPED)
    seen(own, "liar", "5.5.5.5", "/ip4/8.8.8.8/tcp/22", is_exact=True)
    assert observed_now(own) == ()
    assert direct(own) == (LAN, OUTSIDE)


def test_a_router_that_maps_each_connection_anew_is_seen_at_several_ports() -> None:
    own = OwnAddresses(gates=[GATE, PeerId("second")])
    own.listening((LAN,))
    seen(own, GATE, GATE_HOST, MAPPED, is_exact=True)
    seen(own, "second", "7.7.7.7", "/ip4/8.8.8.8/tcp/50999", is_exact=True)
    assert observed_now(own) == ("/ip4/8.8.8.8/tcp/50999", MAPPED)
    assert len(direct(own)) == 1 + MAX_CANDIDATES


@pytest.mark.parametrize(
    "address",
    [
        "/ip4/192.168.1.9/tcp/1",
        "/ip4/127.0.0.1/tcp/1",
        "/dns/example.org/tcp/1",
        "/ip4/8.8.8.8/udp/1",
        "/ip4/8.8.8.8/tcp/1/p2p/x",
        "",
    ],
)
def test_what_is_no_public_address_is_no_observation(address: str) -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, address)
    assert direct(own) == (LAN,)
    assert hosts(own) == ()


def test_neighbours_see_nothing_of_the_outside_but_a_gate_beside_us_may() -> None:
    own = behind_a_router()
    for number in range(9):
        seen(own, f"neighbour {number}", f"192.168.{number}.1", OUTSIDE)
    assert hosts(own) == ()
    seen(own, GATE, "192.168.1.1", OUTSIDE)
    assert hosts(own) == ("8.8.8.8",)


def test_a_public_address_of_our_own_is_no_candidate() -> None:
    own = behind_a_router(OUTSIDE)
    seen(own, GATE, GATE_HOST, MAPPED)
    assert direct(own) == (OUTSIDE,)


def test_a_node_that_does_not_listen_has_no_candidates() -> None:
    own = OwnAddresses(gates=[GATE])
    seen(own, GATE, GATE_HOST, MAPPED, is_exact=True)
    assert direct(own) == told(own) == ()


def test_each_family_has_its_own_port() -> None:
    own = behind_a_router(LAN, "/ip6/fd00::2/tcp/4006")
    seen(own, GATE, GATE_HOST, "/ip6/2a00:1450::2/tcp/9")
    assert direct(own) == (LAN, "/ip6/fd00::2/tcp/4006", "/ip6/2a00:1450::2/tcp/4006")


def test_an_address_with_a_name_is_for_all() -> None:
    assert behind_a_router(LAN, "/dns/example.org/tcp/1").announced[0] == "/dns/example.org/tcp/1"


def test_behind_a_firewall_public_addresses_are_told_where_there_is_no_circuit() -> None:
    own = behind_a_router(OUTSIDE6, LAN)
    own.reach(Reach.CLIENT)
    assert told(own) == (OUTSIDE6, LAN)
    own.circuits([CIRCUIT])
    assert told(own) == (LAN, CIRCUIT)
    assert direct(own) == (OUTSIDE6, LAN)
    own.reach(Reach.SERVER)
    assert told(own) == (OUTSIDE6, LAN, CIRCUIT)


def test_after_a_change_of_the_network_what_others_saw_is_forgotten() -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, MAPPED, is_exact=True)
    own.found_by_dial_back(MAPPED)
    own.listening((LAN,))  # none
    assert told(own) == (MAPPED, LAN)
    own.listening((LAN6,))
    assert direct(own) == told(own) == (LAN6,)
    seen(own, GATE, GATE_HOST, MAPPED, is_exact=True)
    assert told(own) == (LAN6,)  # to be found anew


def test_what_a_peer_sees_now_takes_the_place_of_what_it_saw_before() -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, MAPPED)
    seen(own, GATE, GATE_HOST, "/ip4/7.7.7.7/tcp/1")
    assert hosts(own) == ("7.7.7.7",)


def test_what_is_kept_and_told_is_bounded_and_gates_are_not_pushed_out() -> None:
    own = behind_a_router(*(f"/ip4/10.0.{n}.1/tcp/4001" for n in range(20)))
    seen(own, GATE, GATE_HOST, OUTSIDE)
    own.circuits([f"{CIRCUIT}{n}" for n in range(9)])
    for number in range(MAX_OBSERVERS + 9):
        seen(own, f"peer {number}", f"{number + 11}.1.1.1", f"/ip4/7.7.{number}.7/tcp/1")
    assert hosts(own) == ("8.8.8.8",)
    assert len(direct(own)) == len(told(own)) == MAX_ADDRESSES
    assert told(own)[-MAX_CIRCUITS:] == tuple(f"{CIRCUIT}{n}" for n in range(MAX_CIRCUITS))


def test_a_gate_is_told_of_candidates_too_so_that_it_can_dial_them() -> None:
    own = behind_a_router()
    seen(own, GATE, GATE_HOST, MAPPED)
    assert own.told(PeerId("bob")) == (LAN,)
    assert own.told(GATE) == (LAN, OUTSIDE)


def reached(own: OwnAddresses) -> Reached:
    return own.reached


def test_it_says_by_which_ways_others_reach_it() -> None:
    assert reached(OwnAddresses()) == Reached(Way.SILENT)
    own = behind_a_router()
    assert reached(own) == Reached(Way.UNKNOWN)
    own.reach(Reach.SERVER)  # a neighbour has dialled it
    assert reached(own) == Reached(Way.LOCAL, (LAN,))
    own.reach(Reach.CLIENT)  # a firewall
    assert reached(own) == Reached(Way.NOWHERE, (LAN,), is_shut=True)
    seen(own, GATE, GATE_HOST, "/ip4/8.8.8.8/tcp/9")
    assert reached(own) == Reached(Way.LOCAL, (LAN,), is_shut=True)
    own.circuits([CIRCUIT, CIRCUIT.replace("ip4/9.9.9.9", "ip6/2a00::9")])
    assert reached(own) == Reached(Way.RELAYED, (LAN,), (GATE,))
    own.found_by_dial_back(OUTSIDE)
    assert reached(own) == Reached(Way.DIRECT, (OUTSIDE,))


def test_a_node_with_a_public_address_is_reached_there() -> None:
    own = behind_a_router(OUTSIDE, LAN)
    own.reach(Reach.SERVER)
    assert reached(own) == Reached(Way.DIRECT, (OUTSIDE,))
    alone = behind_a_router(OUTSIDE)
    alone.reach(Reach.CLIENT)
    assert reached(alone) == Reached(Way.NOWHERE, (OUTSIDE,), is_shut=True)


_HOSTS = st.sampled_from(["8.8.8.8", "7.7.7.7", "192.168.1.2", "2a00:1450::2"])


@given(
    st.lists(
        st.tuples(st.integers(0, 3), _HOSTS, st.sampled_from(["4001", "9"]), st.booleans(), _HOSTS),
        max_size=30,
    )
)
def test_fewer_peers_than_must_agree_have_nobody_dial_a_third_party(
    said: list[tuple[int, str, str, bool, str]],
) -> None:
    own = behind_a_router()
    own.reach(Reach.SERVER)
    for liar, host, port, is_exact, where in said:
        family = "ip6" if ":" in host else "ip4"
        # Four peers, at two providers.
        seen(own, f"{liar}", f"5.{liar % 2}.5.5", f"/{family}/{host}/tcp/{port}", is_exact=is_exact)
        own.found_by_dial_back(f"/{family}/{where}/tcp/{port}")
        assert direct(own) == told(own) == (LAN,)


# A rate follows from what came and how long it took.


@pytest.mark.parametrize(
    ("size_bytes", "took_us", "bytes_per_s"), [(3_000_000, 1_500_000, 2_000_000), (5, 0, 5_000_000)]
)
def test_a_rate_is_in_bytes_a_second(size_bytes: int, took_us: int, bytes_per_s: int) -> None:
    rate = Rate(PeerId("a peer"), Path.RELAYED, PeerId("a gate"), size_bytes, took_us)
    assert rate.bytes_per_s == bytes_per_s
