"""Which addresses of a peer are dialled, in which order, and which not at all."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.reach.core.paths import (
    CIRCUITS_AFTER_S,
    FIRST_OPEN_PORT,
    MAX_AT_ITS_WORD,
    Here,
    Plan,
    at_its_word,
    from_own_port,
    plan,
)
from formation_p2p.records.core.addresses import MAX_ADDRESSES

HOME = Here(
    tuple(map(ipaddress.ip_network, ("192.168.1.0/24", "fd00:1::/64", "2a00:1::/64"))),
    frozenset({"11.0.0.9"}),
)
CIRCUIT = "/ip4/11.0.0.1/tcp/4001/p2p/12D3KooWGate/p2p-circuit"


def four(host: str, port: int = 4001) -> str:
    return f"/ip4/{host}/tcp/{port}"


def six(host: str, port: int = 4001) -> str:
    return f"/ip6/{host}/tcp/{port}"


NEAR, FAR, LOOPBACK = four("192.168.1.7"), four("192.168.2.7"), four("127.0.0.1")
PUBLIC, OTHER, PUBLIC_6 = four("11.0.0.2"), four("11.0.0.3"), six("2a00::2")


# -- dialling -----------------------------------------------------------------------------------


def test_what_is_near_comes_first_then_the_families_in_turn() -> None:
    named = "/dns4/kitchen.example/tcp/4001"
    found = plan((PUBLIC, OTHER, named, LOOPBACK, PUBLIC_6, six("fd00:1::7"), NEAR), (), HOME)
    assert found.direct == (six("fd00:1::7"), NEAR, PUBLIC_6, PUBLIC, OTHER, named, LOOPBACK)


def test_circuits_follow_soon_after_and_come_at_once_where_they_are_all() -> None:
    assert plan((PUBLIC,), (CIRCUIT,), HOME).circuits_after_s == CIRCUITS_AFTER_S
    assert plan((), (CIRCUIT,), HOME).circuits_after_s == 0.0
    # What leads into another's private network is not worth waiting for.
    assert plan((FAR,), (CIRCUIT, CIRCUIT), HOME) == Plan((), (CIRCUIT,))


def test_private_addresses_elsewhere_are_dialled_behind_one_host_or_where_all_is_private() -> None:
    assert plan((FAR, PUBLIC), (), HOME).direct == (PUBLIC,)
    assert plan((FAR, PUBLIC), (CIRCUIT,), HOME, shares_host=True).direct == (PUBLIC, FAR)
    assert plan((FAR, NEAR), (), HOME).direct == (NEAR, FAR)


def test_each_address_is_dialled_once_and_no_more_than_a_peer_has() -> None:
    many = [four("11.0.0.2", port) for port in range(2000, 2100)]
    assert plan(many + many, (), HOME).direct == tuple(many[:MAX_ADDRESSES])


@pytest.mark.parametrize(
    ("host", "shared"),
    [
        ("11.0.0.2", True),
        ("2a00:1::7", True),
        ("192.168.2.7", True),
        ("192.168.1.7", False),
        ("127.0.0.1", False),
    ],
)
def test_connections_that_may_cross_a_router_come_from_the_own_port(
    host: str, shared: bool
) -> None:
    assert from_own_port(ipaddress.ip_address(host), HOME) is shared


# -- at a peer's word ---------------------------------------------------------------------------


def test_one_public_host_of_each_family_is_dialled_at_a_peers_word() -> None:
    told = (PUBLIC, OTHER, PUBLIC_6, four("11.0.0.2", 5000), six("2a00::3"))
    assert at_its_word(told, HOME) == (PUBLIC_6, PUBLIC, four("11.0.0.2", 5000))


def test_names_loopback_and_the_ports_of_services_are_not() -> None:
    told = ("/dns4/bank.example/tcp/4001", LOOPBACK, four("11.0.0.2", 25), PUBLIC)
    assert at_its_word(told, HOME) == (PUBLIC,)


def test_our_own_network_is_not_searched_for_a_peer_elsewhere() -> None:
    assert at_its_word((NEAR, FAR), HOME) == ()
    assert at_its_word((NEAR, FAR, PUBLIC), HOME) == (PUBLIC,)


def test_a_neighbour_behind_our_own_host_is_dialled_in_our_network_alone() -> None:
    ours = four("11.0.0.9", 6000)
    assert at_its_word((ours, FAR, NEAR), HOME) == (NEAR, ours)
    assert at_its_word((NEAR, LOOPBACK, ours), HOME) == (NEAR, ours)


# -- laws ---------------------------------------------------------------------------------------

hosts_drawn = (
    st.sampled_from(["192.168.1.7", "192.168.2.7", "127.0.0.1", "11.0.0.2", "11.0.0.9"])
    | st.ip_addresses(v=4).map(str)
    | st.ip_addresses(v=6).map(str)
)
addresses_drawn = st.lists(
    st.builds(
        lambda host, port: six(host, port) if ":" in host else four(host, port),
        hosts_drawn,
        st.integers(1, 65_535),
    ),
    max_size=12,
)


@given(addresses_drawn, st.booleans(), st.booleans())
def test_a_plan_has_each_of_some_addresses_once(
    told: list[str], has_circuit: bool, shares_host: bool
) -> None:
    circuits = (CIRCUIT,) if has_circuit else ()
    found = plan(told, circuits, HOME, shares_host=shares_host)
    assert set(found.direct) <= set(told)
    assert len(set(found.direct)) == len(found.direct) <= MAX_ADDRESSES
    assert found.circuits == circuits
    assert not told or found.direct or found.circuits


@given(addresses_drawn)
def test_a_peer_has_few_addresses_dialled_and_none_of_a_third_network(told: list[str]) -> None:
    chosen = at_its_word(told, HOME)
    assert len(chosen) <= MAX_AT_ITS_WORD
    parts = [address.split("/") for address in chosen]
    ips = {ipaddress.ip_address(part[2]) for part in parts}
    assert all(int(part[4]) >= FIRST_OPEN_PORT for part in parts)
    assert all(ip.is_global or (HOME.is_near(ip) and not ip.is_loopback) for ip in ips)
    for version in (4, 6):
        assert len({ip for ip in ips if ip.is_global and ip.version == version}) <= 1
