"""What is public is a promise: this list changes only on purpose, with the changelog."""

import subprocess
import sys

import pytest

import formation_p2p
from tools.without import features

KERNEL = """
AmbiguousPeer Answer Attempt Awaited Balanced Blob Busy CallKwargs Candidate Capability Capacity
Cheapest CodeSent ContainerSpec Decision Denied Disagreement Discovery Distrusted Driver Env
EnvironmentSettings Execution Experience Failed FailureKind Faulty FormationError GivingWay Gone Gpu
GrantEnded HASHES Hardware Heard Hints Home Hours Infeasible InvalidInput JobEnded JobEvent
JobHandle JobSummary JobWaits LeaseDriver Leaving Limits LocalError Mapped MemoryEstimate Node
NodeClosed NodeExecutor NotPlain OutOfScope Outcome Packed Place PlacementPolicy Plan PlannedTask
Policy Preempted ProcessResult ProcessSpec Profile PythonCall Quorum Quota Ranked Rate Reference
Refusal RelayFor RelaySettings RemoteError RemoteTraceback Report Requirements ResultTooLarge
Retention RetryReason Right Rights RoundTrip Scope ScopeShares Score Scored Silent Spread Stage
Standing StateError Step StoryEntry StoryStep Succeeded SyncJob SyncNode TaskAnswered TaskBegan
TaskCancelled TaskDisagreed TaskFailed TaskGaveUp TaskOptionKwargs TaskOptions TaskPlaced
TaskPrinted TaskRaised TaskRecalled TaskResult TaskRetried TaskSaved TaskSucceeded TaskUnplaceable
TaskView Term TooClose TooDear Trace Trusted Turns Unalike Unauthorized Unbuildable Unplaceable
Unreachable Unwanted Usage WasmSpec WorkerLost Xor __version__ checkpoint cluster derive leaving
parse_policy parse_requirements python_call python_calls rank_by_xor rendezvous responsible restored
value_of
"""
OF_FEATURES = {
    "gangs": """
Gang GangEnded GangEvent GangFormed GangMember GiveUp Links Loss MemberCapacity MemberJoined
MemberLost MemberReleased MemberReplaced Part Partition Pool Recompute Recovery Repartition
Repartitioned Replace SyncGang TakeOver partition repartition
""",
    "services": """
ServiceClient ServiceConnection ServiceError ServicesView SyncServiceClient
""",
}
PUBLIC = " ".join((KERNEL, *(OF_FEATURES.get(each, "") for each in features())))


def test_the_public_names_are_these() -> None:
    assert sorted(formation_p2p.__all__) == sorted(PUBLIC.split())
    for name in formation_p2p.__all__:
        assert getattr(formation_p2p, name) is not None


def test_they_are_listed_where_a_prompt_looks_for_them() -> None:
    assert set(PUBLIC.split()) <= set(dir(formation_p2p))
    with pytest.raises(AttributeError, match="has no attribute 'Nodes'"):
        formation_p2p.Nodes  # noqa: B018


def test_importing_the_package_does_not_import_the_network_stack() -> None:
    """It takes half a second; only a node that joins pays for it."""
    program = "import formation_p2p, sys; formation_p2p.Node; sys.exit('noise' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0


def test_what_a_task_saves_with_is_imported_without_the_rest() -> None:
    """That would take a second of each interpreter in which a module of the user's imports it."""
    program = (
        "import sys; from formation_p2p import checkpoint, leaving, restored\n"
        "loaded = {name for name in sys.modules if name.startswith('formation_p2p.')}\n"
        "rooms = {'formation_p2p.drivers'}\n"
        "assert loaded == rooms | {'formation_p2p.drivers.python_checkpoint'}, loaded\n"
        "import formation_p2p.public\n"
        "assert checkpoint is formation_p2p.public.checkpoint"
    )
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
