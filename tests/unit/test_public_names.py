"""What is public is a promise: this list changes only on purpose, with the changelog."""

from __future__ import annotations

import subprocess
import sys

import formation_p2p

PUBLIC = """
Attempt Busy Capability Capacity Decision Denied Discovery Driver Execution Failed FailureKind
FormationError Gone Gpu Hardware Home Infeasible InvalidInput JobEnded JobEvent JobHandle Leaving
Limits LocalError Node NodeClosed Outcome ProcessResult ProcessSpec Profile PythonCall Refusal
RemoteError Report Requirements Right Rights Step Succeeded SyncJob SyncNode TaskBegan TaskCancelled
TaskFailed
TaskGaveUp TaskPlaced TaskPrinted TaskResult TaskRetried TaskSucceeded TaskUnplaceable Trace
Unauthorized Unplaceable Unreachable WorkerLost __version__ parse_requirements python_calls
value_of
"""


def test_the_public_names_are_these() -> None:
    assert formation_p2p.__all__ == PUBLIC.split()
    for name in formation_p2p.__all__:
        assert getattr(formation_p2p, name) is not None


def test_importing_the_package_does_not_import_the_network_stack() -> None:
    """py-libp2p takes a second and 70 MB; only a node that joins pays for it."""
    program = "import formation_p2p, sys; sys.exit('libp2p' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], timeout=30, check=False).returncode == 0
