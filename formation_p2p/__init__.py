"""Machines that find each other on a libp2p Kademlia DHT and run each other's work.

    async with Node.join() as node:            # or: with SyncNode.join() as node
        squares = await node.map(square, range(100), needs="cpu=1,memory=1GiB")

All that is public is listed in `__all__`; everything else may change in any release.
"""

from typing import TYPE_CHECKING

from formation_p2p.calls import python_call, python_calls, value_of
from formation_p2p.discovery.trace import Step, Trace
from formation_p2p.dispatch.job_events import (
    Attempt,
    JobEnded,
    JobEvent,
    TaskBegan,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.errors import (
    FormationError,
    InvalidInput,
    LocalError,
    NodeClosed,
    RemoteError,
    StateError,
    TaskFailed,
    Unauthorized,
    Unplaceable,
    Unreachable,
)
from formation_p2p.executor import NodeExecutor
from formation_p2p.host.drivers.driver import Driver, Execution, LeaseDriver, Report, Turns
from formation_p2p.host.hardware import Hardware
from formation_p2p.host.home import Home
from formation_p2p.host.state import Retention
from formation_p2p.host.state_rows import JobSummary
from formation_p2p.job import JobHandle, TaskResult
from formation_p2p.mapped import Mapped
from formation_p2p.node import Node
from formation_p2p.placement import pricing
from formation_p2p.placement.balanced import Balanced, rendezvous
from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.cheapest import Cheapest
from formation_p2p.placement.decision import Decision, Ranked
from formation_p2p.placement.hashing import HASHES
from formation_p2p.placement.names import parse_policy
from formation_p2p.placement.packed import Packed
from formation_p2p.placement.policy import PlacementPolicy, Policy, Score, Term
from formation_p2p.placement.scored import Scored
from formation_p2p.placement.spread import Spread
from formation_p2p.placement.trusted import Trusted
from formation_p2p.placement.xor import Xor, cluster, rank_by_xor, responsible
from formation_p2p.questions import Discovery
from formation_p2p.records.profile import Profile
from formation_p2p.refusals import (
    Busy,
    Denied,
    Distrusted,
    Faulty,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    OutOfScope,
    Preempted,
    Refusal,
    Silent,
    TooDear,
    Unwanted,
)
from formation_p2p.resources.capability import Capability, Capacity
from formation_p2p.resources.gpu import Gpu
from formation_p2p.resources.limits import Limits
from formation_p2p.resources.parse import parse_requirements
from formation_p2p.resources.requirements import Requirements
from formation_p2p.sync import SyncJob, SyncNode
from formation_p2p.trust.experience import Experience
from formation_p2p.trust.grants import Right, Rights
from formation_p2p.trust.hours import Hours
from formation_p2p.trust.quota import Quota
from formation_p2p.trust.reputation import Heard, Standing
from formation_p2p.workload.blob import Blob
from formation_p2p.workload.container import ContainerSpec
from formation_p2p.workload.derive import Stage, derive
from formation_p2p.workload.hints import Hints
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded, Usage
from formation_p2p.workload.plan import Plan, PlannedTask
from formation_p2p.workload.process import ProcessResult, ProcessSpec
from formation_p2p.workload.python_call import PythonCall
from formation_p2p.workload.scope import Place, Scope, Shares
from formation_p2p.workload.sizes import Learnt
from formation_p2p.workload.wasm import WasmSpec

if TYPE_CHECKING:
    from formation_p2p.placement.table import Table

__version__ = "0.1.0"

__all__ = [
    "HASHES",
    "Asked",
    "Attempt",
    "Balanced",
    "Blob",
    "Busy",
    "Candidate",
    "Capability",
    "Capacity",
    "Cheapest",
    "ContainerSpec",
    "Decision",
    "Denied",
    "Discovery",
    "Distrusted",
    "Driver",
    "Execution",
    "Experience",
    "Failed",
    "FailureKind",
    "Faulty",
    "FormationError",
    "GivingWay",
    "Gone",
    "Gpu",
    "Hardware",
    "Heard",
    "Hints",
    "Home",
    "Hours",
    "Infeasible",
    "InvalidInput",
    "JobEnded",
    "JobEvent",
    "JobHandle",
    "JobSummary",
    "Learnt",
    "LeaseDriver",
    "Leaving",
    "Limits",
    "LocalError",
    "Mapped",
    "Node",
    "NodeClosed",
    "NodeExecutor",
    "OutOfScope",
    "Outcome",
    "Packed",
    "Place",
    "PlacementPolicy",
    "Plan",
    "PlannedTask",
    "Policy",
    "Preempted",
    "ProcessResult",
    "ProcessSpec",
    "Profile",
    "PythonCall",
    "Quota",
    "Ranked",
    "Refusal",
    "RemoteError",
    "Report",
    "Requirements",
    "Retention",
    "Right",
    "Rights",
    "Scope",
    "Score",
    "Scored",
    "Shares",
    "Silent",
    "Spread",
    "Stage",
    "Standing",
    "StateError",
    "Step",
    "Succeeded",
    "SyncJob",
    "SyncNode",
    "Table",
    "TaskBegan",
    "TaskCancelled",
    "TaskFailed",
    "TaskGaveUp",
    "TaskPlaced",
    "TaskPrinted",
    "TaskRecalled",
    "TaskResult",
    "TaskRetried",
    "TaskSucceeded",
    "TaskUnplaceable",
    "Term",
    "TooDear",
    "Trace",
    "Trusted",
    "Turns",
    "Unauthorized",
    "Unplaceable",
    "Unreachable",
    "Unwanted",
    "Usage",
    "WasmSpec",
    "WorkerLost",
    "Xor",
    "__version__",
    "cluster",
    "derive",
    "parse_policy",
    "parse_requirements",
    "pricing",
    "python_call",
    "python_calls",
    "rank_by_xor",
    "rendezvous",
    "responsible",
    "value_of",
]


def __getattr__(name: str) -> object:
    """`Table` when it is asked for: numpy takes a tenth of a second to import."""
    if name == "Table":
        from formation_p2p.placement.table import Table

        return Table
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
