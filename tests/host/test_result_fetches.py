"""Large results on their way to their submitter: what waits, is stopped, or does not come."""

from typing import cast

import trio
import trio.testing

from formation_p2p.content.arrivals import Arrivals, Arrived
from formation_p2p.content.files import NoRoom
from formation_p2p.content.private import PrivateExchange
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.fetch import (
    FetchEvent,
    FetchResult,
    ResultFetched,
    ResultLost,
    StopFetch,
)
from formation_p2p.peer.performer import MAX_FETCHES, ResultFetches
from formation_p2p.workload.core.blob import PrivateBlob
from tests.support.parcels import OWNER
from tests.support.waiting import in_mocked_time, in_trio

WORKER = OWNER.peer_id


class Source:
    """Brings the results whose attempts it is told of, once there is room for them."""

    def __init__(self) -> None:
        self.full = 0
        self.go = trio.Event()

    async def result(self, blob: PrivateBlob) -> Arrived:
        if self.full:
            self.full -= 1
            raise NoRoom("nothing fits")
        await self.go.wait()
        if blob.size_bytes == 2:
            raise Unreachable("it is gone")
        return Arrivals().room(blob.size_bytes)


def asked(attempt_id: str, size_bytes: int = 1) -> FetchResult:
    blob = PrivateBlob(bytes(16), size_bytes, OWNER)
    return FetchResult("lease", attempt_id, "job", blob, cause="a test")


@in_trio
async def test_results_are_fetched_lost_or_stopped() -> None:
    told: list[FetchEvent] = []
    source = Source()
    fetches = ResultFetches(cast("PrivateExchange", source), None, told.append)
    async with trio.open_nursery() as nursery:
        for attempt_id, size in (("a", 1), ("b", 2), ("c", 1)):
            nursery.start_soon(fetches.begin(asked(attempt_id, size)))
        begun = fetches.begin(asked("d"))
        fetches.stop(StopFetch(WORKER, "lease", "d", cause="a test"))  # before it has run
        nursery.start_soon(begun)
        await trio.testing.wait_all_tasks_blocked()
        fetches.stop(StopFetch(WORKER, "lease", "c", cause="a test"))
        fetches.stop(StopFetch(WORKER, "lease", "unknown", cause="a test"))
        source.go.set()
    ended = {event.attempt_id: event for event in told}
    assert isinstance(ended.pop("a"), ResultFetched)
    assert ended == {"b": ResultLost(WORKER, "lease", "b", "it is gone")}


@in_trio
async def test_a_worker_whose_results_do_not_come_keeps_no_other_s_waiting() -> None:
    class Partial(Source):
        async def result(self, blob: PrivateBlob) -> Arrived:
            if blob.owner is OWNER:
                await trio.sleep_forever()
            return Arrivals().room(blob.size_bytes)

    told: list[FetchEvent] = []
    fetches = ResultFetches(cast("PrivateExchange", Partial()), None, told.append)
    async with trio.open_nursery() as nursery:
        for number in range(2 * MAX_FETCHES):
            nursery.start_soon(fetches.begin(asked(f"{number}")))
        await trio.testing.wait_all_tasks_blocked()
        blob = PrivateBlob(bytes(16), 1, Contact(PeerId("alice")))
        await fetches.begin(FetchResult("lease", "other", "job", blob, cause="a test"))()
        nursery.cancel_scope.cancel()
    assert [event.attempt_id for event in told] == ["other"]


@in_mocked_time
async def test_where_there_is_no_room_it_is_tried_again() -> None:
    told: list[FetchEvent] = []
    source = Source()
    source.full = 2
    source.go.set()
    fetches = ResultFetches(cast("PrivateExchange", source), None, told.append)
    await fetches.begin(asked("a"))()
    assert isinstance(told[0], ResultFetched)
