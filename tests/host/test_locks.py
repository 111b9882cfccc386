"""Locks of the trio thread."""

import trio
import trio.testing

from formation_p2p.machine.locks import KeyedLocks, acquired
from tests.support.waiting import in_trio


@in_trio
async def test_a_free_lock_takes_no_turn_of_the_loop_and_a_taken_one_is_waited_for() -> None:
    done: list[str] = []
    lock = trio.Lock()

    async def other() -> None:
        done.append("other has its turn")
        await acquired(lock)
        done.append("other has it")
        lock.release()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(other)
        await acquired(lock)
        assert done == []
        await trio.testing.wait_all_tasks_blocked()
        done.append("given back")
        lock.release()
    assert done == ["other has its turn", "given back", "other has it"]


@in_trio
async def test_one_task_at_a_time_has_the_lock_of_a_key_and_none_waits_for_another_key() -> None:
    locks, done = KeyedLocks[str](), []

    async def other(key: str, name: str) -> None:
        async with locks.of(key):
            done.append(name)

    async with trio.open_nursery() as nursery:
        async with locks.of("a"):
            with trio.CancelScope() as gives_up:
                gives_up.cancel()
                await other("a", "never")
            nursery.start_soon(other, "a", "waits")
            nursery.start_soon(other, "b", "does not")
            await trio.testing.wait_all_tasks_blocked()
            done.append("first")
        nursery.start_soon(other, "a", "comes later")
    assert done == ["does not", "first", "waits", "comes later"]
