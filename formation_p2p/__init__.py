"""Machines that find each other on a libp2p Kademlia DHT and run each other's work.

    async with Node.join() as node:            # or: with SyncNode.join() as node
        squares = await node.map(square, range(100), needs="cpu=1,memory=1GiB")

All that is public is listed in `__all__`; everything else may change in any release.
"""

from formation_p2p.api.calls import python_call, python_calls, value_of
from formation_p2p.api.executor import NodeExecutor
from formation_p2p.api.job import JobHandle, TaskResult
from formation_p2p.api.map import Mapped
from formation_p2p.api.node import Node
from formation_p2p.api.pending import Discovery
from formation_p2p.api.sync import SyncJob, SyncNode
from formation_p2p.core.discovery.trace import Step, Trace
from formation_p2p.core.dispatch.job_events import (
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
from formation_p2p.core.errors import (
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
from formation_p2p.core.peer.story import StoryEntry, StoryStep
from formation_p2p.core.placement.balanced import Balanced, rendezvous
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.cheapest import Cheapest
from formation_p2p.core.placement.decision import Decision, Ranked
from formation_p2p.core.placement.hashing import HASHES
from formation_p2p.core.placement.packed import Packed
from formation_p2p.core.placement.policy import PlacementPolicy, Policy, Score, Term
from formation_p2p.core.placement.scored import Scored
from formation_p2p.core.placement.spread import Spread
from formation_p2p.core.placement.task_options import TaskOptions
from formation_p2p.core.placement.trusted import Trusted
from formation_p2p.core.placement.xor import Xor, cluster, rank_by_xor, responsible
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import (
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
from formation_p2p.core.resources.capability import Capability, Capacity
from formation_p2p.core.resources.gpu import Gpu
from formation_p2p.core.resources.limits import Limits
from formation_p2p.core.resources.parse import parse_requirements
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.experience import Experience
from formation_p2p.core.trust.grants import Right, Rights
from formation_p2p.core.trust.hours import Hours
from formation_p2p.core.trust.quota import Quota
from formation_p2p.core.trust.reputation import Heard, Standing
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.container import ContainerSpec
from formation_p2p.core.workload.derive import Stage, derive
from formation_p2p.core.workload.hints import Hints
from formation_p2p.core.workload.memory_estimate import MemoryEstimate
from formation_p2p.core.workload.outcome import Failed, FailureKind, Outcome, Succeeded, Usage
from formation_p2p.core.workload.plan import Plan, PlannedTask
from formation_p2p.core.workload.process import ProcessResult, ProcessSpec
from formation_p2p.core.workload.scope import Place, Scope, ScopeShares
from formation_p2p.core.workload.wasm import WasmSpec
from formation_p2p.core.workload.work import PythonCall
from formation_p2p.host.drivers.driver import Driver, Execution, LeaseDriver, Report, Turns
from formation_p2p.host.machine.hardware import Hardware
from formation_p2p.host.machine.home import Home
from formation_p2p.host.policies import parse_policy
from formation_p2p.host.storage.rows import JobSummary
from formation_p2p.host.storage.state import Retention

__version__ = "0.1.0"

__all__ = [
    "HASHES",
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
    "LeaseDriver",
    "Leaving",
    "Limits",
    "LocalError",
    "Mapped",
    "MemoryEstimate",
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
    "ScopeShares",
    "Score",
    "Scored",
    "Silent",
    "Spread",
    "Stage",
    "Standing",
    "StateError",
    "Step",
    "StoryEntry",
    "StoryStep",
    "Succeeded",
    "SyncJob",
    "SyncNode",
    "TaskBegan",
    "TaskCancelled",
    "TaskFailed",
    "TaskGaveUp",
    "TaskOptions",
    "TaskPlaced",
    "TaskPrinted",
    "TaskRecalled",
    "TaskResult",
    "TaskRetried",
    "TaskSucceeded",
    "TaskUnplaceable",
    "TaskView",
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
    "python_call",
    "python_calls",
    "rank_by_xor",
    "rendezvous",
    "responsible",
    "value_of",
]
