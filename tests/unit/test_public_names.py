"""What is public is a promise: this list changes only on purpose, with the changelog."""

from __future__ import annotations

import subprocess
import sys

import formation_p2p

PUBLIC = """
Attempt Blob Busy Capability Capacity ContainerSpec Decision Denied Discovery Driver Execution
Failed FailureKind Faulty FormationError GivingWay Gone Gpu Hardware Home Infeasible InvalidInput
JobEnded JobEvent JobHandle JobSummary LeaseDriver Leaving Limits LocalError Mapped Node NodeClosed
NodeExecutor Outcome Preempted ProcessResult ProcessSpec Profile PythonCall Refusal RemoteError
Report Requirements Retention Right Rights Silent StateError Step Succeeded SyncJob SyncNode
TaskBegan TaskCancelled TaskFailed TaskGaveUp TaskPlaced TaskPrinted TaskRecalled TaskResult
TaskRetried TaskSucceeded TaskUnplaceable TooDear Trace Turns Unauthorized Unplaceable Unreachable
WasmSpec WorkerLost __version__ parse_requirements python_calls value_of
"""


def test_the_public_names_are_these() -> None:
    assert formation_p2p.__all__ == PUBLIC.split()
    for name in formation_p2p.__all__:
        assert getattr(formation_p2p, name) is not None


def test_importing_the_package_does_not_import_the_network_stack() -> None:
    """py-libp2p takes a second and 70 MB; only a node that joins pays for it."""
    program = "import formation_p2p, sys; sys.exit('libp2p' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
