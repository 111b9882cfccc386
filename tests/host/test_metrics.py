"""What a node counts of the events that it is handed, and of what it decides."""

from formation_p2p.drivers.core.effects import ExecutionSaved
from formation_p2p.jobs.core.job_events import EmitJobEvent, TaskSaved
from formation_p2p.observe.metrics import Metrics
from formation_p2p.peer.core.events import Tick
from formation_p2p.workload.core.checkpoint import Checkpoint, inline
from tests.support.stories import ALICE, at

HALF = inline(b"half")


def test_a_checkpoint_counts_once_though_it_is_told_again() -> None:
    metrics = Metrics(ALICE.peer_id)

    def told(task: str, sequence: int) -> None:
        saved = TaskSaved(task, Checkpoint(sequence, HALF), (ALICE.peer_id,))
        metrics.observe(Tick(), [EmitJobEvent("job", saved, cause="")], at(0))

    for task, sequence in (("job/0", 1), ("job/1", 1), ("job/0", 1), ("job/0", 2), ("job/0", 2)):
        told(task, sequence)
    metrics.observe(ExecutionSaved("lease", "job/0#1", HALF), (), at(0))
    assert metrics.registry.get_sample_value("formation_checkpoints_held_total") == 3
    assert metrics.registry.get_sample_value("formation_checkpoints_saved_total") == 1
