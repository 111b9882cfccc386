"""When a large checkpoint counts: once two peers beside its owner hold it, or all that can."""

from formation_p2p.core.effects import Contact
from formation_p2p.jobs.core.checkpoints import AGAIN_S, RENEWED_S, Checkpoints
from formation_p2p.jobs.core.fetch import (
    CheckpointKept,
    CheckpointSpread,
    DropCheckpoints,
    KeepCheckpoint,
    SchedulerEffect,
    SpreadCheckpoint,
)
from formation_p2p.jobs.core.job_events import JobEvent, TaskSaved
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import Checkpoint, inline
from tests.support.stories import ALICE, BOB, CAROL, DAVE, MALLORY, at, job, only


class Chain:
    """That of one task, which alice runs for bob."""

    def __init__(self) -> None:
        self.done: list[SchedulerEffect] = []
        self.told: list[JobEvent] = []
        self.machine = Checkpoints(
            self.done.append, self.done.append, lambda job_id, event: self.told.append(event)
        )
        whole = job()
        self.run = TaskRun(whole.tasks[0], JobRun(whole), whole.tasks[0].key)
        self.now = at(100.0)

    def saved(self, sequence: int) -> None:
        text = b"%d" % sequence
        blob = Blob(Cid(RAW, digest_of(text)), len(text), (ALICE,))
        assert self.machine.saved(self.run, Checkpoint(sequence, blob), self.now, "test")

    def asked(self, *others: Contact) -> int:
        """The number of what these are asked to hold; 0 for none."""
        before = len(only(self.done, SpreadCheckpoint))
        for run in self.machine.due(self.now):
            self.machine.spread(run, others, self.now)
        asked = only(self.done, SpreadCheckpoint)[before:]
        return asked[0].checkpoint.sequence if asked else 0

    def holding(self, sequence: int, *holders: Contact) -> None:
        event = CheckpointSpread(self.run.task.task_id, sequence, holders)
        self.machine.spread_ended(event, self.now)

    def kept(self, sequence: int, holder: Contact | None = BOB) -> None:
        self.machine.kept(CheckpointKept(self.run.task.task_id, sequence, holder), self.now)

    def counted(self) -> list[tuple[int, int]]:
        """The numbers, and how many others held each."""
        return [(x.checkpoint.sequence, len(x.holders)) for x in only(self.told, TaskSaved)]

    def awaits(self) -> bool:
        return self.run.is_awaiting

    def sources(self) -> tuple[Contact, ...]:
        assert self.run.checkpoint is not None
        return self.run.checkpoint.blob.sources


def test_it_counts_once_two_others_hold_it_though_its_owner_does_not_yet() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL, DAVE, MALLORY) == 1
    chain.holding(1, CAROL, DAVE)
    assert chain.counted() == [(1, 2)]
    assert chain.sources() == (CAROL, DAVE)
    chain.kept(1)
    assert chain.counted() == [(1, 2)]
    assert chain.sources() == (CAROL, DAVE, BOB)
    # What was held before goes then, and not sooner.
    chain.saved(2)
    chain.kept(2)
    assert [each.up_to for each in only(chain.done, DropCheckpoints)] == [0]
    assert chain.asked(CAROL, DAVE) == 2
    chain.holding(2, DAVE, CAROL)
    assert [each.up_to for each in only(chain.done, DropCheckpoints)] == [0, 1]
    assert chain.counted() == [(1, 2), (2, 2)]


def test_where_too_few_can_it_counts_with_its_owner() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL) == 1
    chain.kept(1)
    assert chain.counted() == []
    assert chain.sources() == (BOB,)
    chain.holding(1, CAROL)
    assert chain.counted() == [(1, 1)]
    assert chain.sources() == (CAROL, BOB)
    chain.saved(2)
    assert chain.asked() == 0
    assert chain.counted() == [(1, 1)]
    chain.kept(2)
    assert chain.counted() == [(1, 1), (2, 0)]


def test_where_its_owner_has_no_room_others_are_enough() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL) == 1
    chain.holding(1, CAROL)
    assert chain.counted() == []
    chain.kept(1, None)
    assert chain.counted() == [(1, 1)]
    assert chain.sources() == (CAROL,)
    # They are asked again.
    chain.now = at(101.0 + AGAIN_S)
    assert chain.asked(CAROL, DAVE) == 1
    chain.holding(1)
    assert chain.sources() == (CAROL,)


def test_one_that_none_has_does_not_count() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL) == 1
    chain.holding(1)
    # It is asked of others while it is on its way here.
    chain.now = at(101.0 + AGAIN_S)
    assert chain.asked(CAROL, DAVE) == 1
    chain.holding(1)
    chain.kept(1, None)
    assert chain.counted() == []
    chain.now = at(100.0 + RENEWED_S)
    assert chain.asked(CAROL) == 0


def test_one_that_is_saved_while_others_are_asked_again_is_next() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL, DAVE) == 1
    chain.kept(1)
    chain.holding(1, CAROL, DAVE)
    chain.now = at(101.0 + RENEWED_S)
    assert chain.asked(CAROL, DAVE) == 1
    chain.saved(2)
    assert chain.asked(CAROL, DAVE) == 0
    chain.machine.spread(chain.run, (CAROL, DAVE), chain.now)
    chain.holding(1, CAROL)
    assert chain.counted() == [(1, 2), (1, 1)]
    assert chain.asked(CAROL, DAVE) == 2
    chain.holding(2, CAROL, DAVE)
    chain.kept(2)
    chain.now = at(102.0 + 2 * RENEWED_S)
    assert chain.asked(CAROL, DAVE) == 2
    chain.saved(3)
    chain.kept(3)
    chain.holding(2, CAROL)
    assert chain.counted()[2:] == [(2, 2)]
    assert chain.asked(CAROL, DAVE) == 3


def test_the_last_one_of_a_task_that_goes_on_elsewhere_does_not_wait_for_holders() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL, DAVE) == 1
    chain.kept(1)
    chain.saved(2)
    assert [each.checkpoint.sequence for each in only(chain.done, KeepCheckpoint)] == [1]
    chain.machine.moved(chain.run)
    assert chain.awaits()
    assert [each.checkpoint.sequence for each in only(chain.done, KeepCheckpoint)] == [1, 2]
    chain.kept(2)
    assert not chain.awaits()
    assert chain.sources() == (BOB,)
    chain.holding(1, CAROL, DAVE)
    assert chain.asked(CAROL, DAVE) == 2
    chain.holding(2, CAROL, DAVE)
    assert chain.counted() == [(2, 2)]


def test_a_small_one_takes_the_place_of_what_is_on_its_way() -> None:
    chain = Chain()
    chain.saved(1)
    assert chain.asked(CAROL, DAVE) == 1
    small = Checkpoint(2, inline(b"small"), b"small")
    assert chain.machine.saved(chain.run, small, chain.now, "test")
    chain.kept(1)
    chain.holding(1, CAROL, DAVE)
    assert chain.counted() == [(2, 0)]
    assert [each.up_to for each in only(chain.done, DropCheckpoints)] == [1]
