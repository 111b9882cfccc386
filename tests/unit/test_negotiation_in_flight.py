"""How much is in flight under a lease, as both of its sides count it."""

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.leases.core.in_flight import MAX_IN_FLIGHT_BYTES, InFlight
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES


def test_two_of_the_largest_tasks_fit() -> None:
    load, half = InFlight(), bytes(MAX_PAYLOAD_BYTES // 2)
    for mark in (b"a", b"b"):
        shared = mark * len(half)
        assert load.has_room_for(half, shared)
        load.add(len(half), shared)
    assert load.total_bytes == MAX_IN_FLIGHT_BYTES
    assert load.has_room_for(b"", b"a" * len(half))
    assert not load.has_room_for(b"", b"c")
    assert not load.has_room_for(b"x", b"")


KINDS = (b"", b"f" * 100, b"g" * 10)
TASKS = st.tuples(st.integers(0, 50), st.sampled_from(KINDS))


@given(st.lists(TASKS | st.none(), max_size=40))
def test_it_counts_each_payload_and_once_what_some_of_them_share(
    story: list[tuple[int, bytes] | None],
) -> None:
    """None is the end of the oldest."""
    load, in_flight = InFlight(), list[tuple[int, bytes]]()
    for each in story:
        if each is not None:
            load.add(*each)
            in_flight.append(each)
        elif in_flight:
            load.remove(*in_flight.pop(0))
        shared = {kind for _, kind in in_flight}
        assert load.total_bytes == sum(size for size, _ in in_flight) + sum(map(len, shared))
        assert load.tasks == len(in_flight)
