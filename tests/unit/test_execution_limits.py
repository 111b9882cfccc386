"""The share of a lease, as the numbers that hold a task to it."""

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.units import GIB, MAX_BYTES, MAX_MILLI, MIB
from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.workload.core.work import MIN_MEMORY_BYTES

LIMITS = st.builds(TaskLimits, st.integers(0, MAX_MILLI), st.integers(0, MAX_BYTES))


@pytest.mark.parametrize(
    ("cpu_milli", "cores"), [(0, 1), (1, 1), (1000, 1), (1001, 2), (4000, 4), (4500, 5)]
)
def test_a_share_of_a_core_needs_the_whole_core_to_run_on(cpu_milli: int, cores: int) -> None:
    assert TaskLimits(cpu_milli, GIB).cores == cores


def test_a_group_holds_the_exact_share() -> None:
    assert TaskLimits(1500, 2 * GIB).group_files == {
        "cpu.max": "150000 100000",
        "memory.max": "2147483648",
        "memory.oom.group": "1",
        "memory.swap.max": "0",
        "pids.max": "4096",
    }


def test_a_lease_over_nothing_still_runs_something() -> None:
    nothing = TaskLimits(0, 0)
    assert nothing.enforced_memory_bytes == MIN_MEMORY_BYTES
    assert nothing.group_files["cpu.max"] == "1000 100000"
    assert nothing.address_space["RLIMIT_AS"] >= 320 * GIB


@given(LIMITS)
def test_resource_limits_are_ones_that_setrlimit_takes_and_leave_room_for_the_memory(
    limits: TaskLimits,
) -> None:
    for name, value in limits.resource_limits.items():
        assert isinstance(getattr(resource, name), int)
        assert 0 <= value < 2**63
    assert limits.resource_limits["RLIMIT_DATA"] >= limits.enforced_memory_bytes + 512 * MIB
    assert limits.address_space["RLIMIT_AS"] >= 320 * GIB


def test_no_file_is_longer_than_the_storage_that_a_lease_holds() -> None:
    assert TaskLimits(1000, GIB, 3 * MIB).resource_limits["RLIMIT_FSIZE"] == 3 * MIB
    for none_asked in (TaskLimits(1000, GIB), TaskLimits(1000, GIB, 100 * GIB)):
        assert none_asked.resource_limits["RLIMIT_FSIZE"] == 64 * GIB
