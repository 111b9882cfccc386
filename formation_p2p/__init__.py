"""Machines that find each other on a libp2p Kademlia DHT and run each other's work.

    async with Node.join() as node:            # or: with SyncNode.join() as node
        squares = await node.map(square, range(100), needs="cpu=1,memory=1GiB")

All that is public is imported here under its own name; everything else may change in any release.
"""

from formation_p2p.api.bridge import Discovery as Discovery
from formation_p2p.api.calls import python_call as python_call
from formation_p2p.api.calls import python_calls as python_calls
from formation_p2p.api.calls import value_of as value_of
from formation_p2p.api.executor import NodeExecutor as NodeExecutor
from formation_p2p.api.job import JobHandle as JobHandle
from formation_p2p.api.job import TaskResult as TaskResult
from formation_p2p.api.map import Mapped as Mapped
from formation_p2p.api.node import Node as Node
from formation_p2p.api.sync import SyncJob as SyncJob
from formation_p2p.api.sync import SyncNode as SyncNode
from formation_p2p.core.discovery.trace import Step as Step
from formation_p2p.core.discovery.trace import Trace as Trace
from formation_p2p.core.dispatch.job_events import Attempt as Attempt
from formation_p2p.core.dispatch.job_events import CodeSent as CodeSent
from formation_p2p.core.dispatch.job_events import JobEnded as JobEnded
from formation_p2p.core.dispatch.job_events import JobEvent as JobEvent
from formation_p2p.core.dispatch.job_events import TaskBegan as TaskBegan
from formation_p2p.core.dispatch.job_events import TaskCancelled as TaskCancelled
from formation_p2p.core.dispatch.job_events import TaskGaveUp as TaskGaveUp
from formation_p2p.core.dispatch.job_events import TaskPlaced as TaskPlaced
from formation_p2p.core.dispatch.job_events import TaskPrinted as TaskPrinted
from formation_p2p.core.dispatch.job_events import TaskRecalled as TaskRecalled
from formation_p2p.core.dispatch.job_events import TaskRetried as TaskRetried
from formation_p2p.core.dispatch.job_events import TaskSucceeded as TaskSucceeded
from formation_p2p.core.dispatch.job_events import TaskUnplaceable as TaskUnplaceable
from formation_p2p.core.dispatch.job_events import WorkerLost as WorkerLost
from formation_p2p.core.errors import FormationError as FormationError
from formation_p2p.core.errors import InvalidInput as InvalidInput
from formation_p2p.core.errors import LocalError as LocalError
from formation_p2p.core.errors import NodeClosed as NodeClosed
from formation_p2p.core.errors import NotPlain as NotPlain
from formation_p2p.core.errors import RemoteError as RemoteError
from formation_p2p.core.errors import RemoteTraceback as RemoteTraceback
from formation_p2p.core.errors import StateError as StateError
from formation_p2p.core.errors import TaskFailed as TaskFailed
from formation_p2p.core.errors import TaskRaised as TaskRaised
from formation_p2p.core.errors import Unauthorized as Unauthorized
from formation_p2p.core.errors import Unplaceable as Unplaceable
from formation_p2p.core.errors import Unreachable as Unreachable
from formation_p2p.core.peer.story import StoryEntry as StoryEntry
from formation_p2p.core.peer.story import StoryStep as StoryStep
from formation_p2p.core.placement.candidate import Candidate as Candidate
from formation_p2p.core.placement.candidate import TaskView as TaskView
from formation_p2p.core.placement.decision import Decision as Decision
from formation_p2p.core.placement.decision import Ranked as Ranked
from formation_p2p.core.placement.policies import Balanced as Balanced
from formation_p2p.core.placement.policies import Cheapest as Cheapest
from formation_p2p.core.placement.policies import Packed as Packed
from formation_p2p.core.placement.policies import Spread as Spread
from formation_p2p.core.placement.policies import Trusted as Trusted
from formation_p2p.core.placement.policies import rendezvous as rendezvous
from formation_p2p.core.placement.policy import PlacementPolicy as PlacementPolicy
from formation_p2p.core.placement.policy import Policy as Policy
from formation_p2p.core.placement.policy import Score as Score
from formation_p2p.core.placement.policy import Term as Term
from formation_p2p.core.placement.scored import Scored as Scored
from formation_p2p.core.placement.task_options import TaskOptions as TaskOptions
from formation_p2p.core.placement.xor import HASHES as HASHES
from formation_p2p.core.placement.xor import Xor as Xor
from formation_p2p.core.placement.xor import cluster as cluster
from formation_p2p.core.placement.xor import rank_by_xor as rank_by_xor
from formation_p2p.core.placement.xor import responsible as responsible
from formation_p2p.core.records.profile import Profile as Profile
from formation_p2p.core.refusals import Busy as Busy
from formation_p2p.core.refusals import Denied as Denied
from formation_p2p.core.refusals import Distrusted as Distrusted
from formation_p2p.core.refusals import Faulty as Faulty
from formation_p2p.core.refusals import GivingWay as GivingWay
from formation_p2p.core.refusals import Gone as Gone
from formation_p2p.core.refusals import Infeasible as Infeasible
from formation_p2p.core.refusals import Leaving as Leaving
from formation_p2p.core.refusals import OutOfScope as OutOfScope
from formation_p2p.core.refusals import Preempted as Preempted
from formation_p2p.core.refusals import Refusal as Refusal
from formation_p2p.core.refusals import Silent as Silent
from formation_p2p.core.refusals import TooDear as TooDear
from formation_p2p.core.refusals import Unbuildable as Unbuildable
from formation_p2p.core.refusals import Unwanted as Unwanted
from formation_p2p.core.resources.capability import Capability as Capability
from formation_p2p.core.resources.capability import Capacity as Capacity
from formation_p2p.core.resources.capability import Limits as Limits
from formation_p2p.core.resources.gpu import Gpu as Gpu
from formation_p2p.core.resources.requirements import Requirements as Requirements
from formation_p2p.core.resources.requirements import parse_requirements as parse_requirements
from formation_p2p.core.trust.experience import Experience as Experience
from formation_p2p.core.trust.grants import Right as Right
from formation_p2p.core.trust.grants import Rights as Rights
from formation_p2p.core.trust.hours import Hours as Hours
from formation_p2p.core.trust.quota import Quota as Quota
from formation_p2p.core.trust.reputation import Heard as Heard
from formation_p2p.core.trust.reputation import Standing as Standing
from formation_p2p.core.workload.blob import Blob as Blob
from formation_p2p.core.workload.derive import Stage as Stage
from formation_p2p.core.workload.derive import derive as derive
from formation_p2p.core.workload.environment import Env as Env
from formation_p2p.core.workload.hints import Hints as Hints
from formation_p2p.core.workload.outcome import Failed as Failed
from formation_p2p.core.workload.outcome import FailureKind as FailureKind
from formation_p2p.core.workload.outcome import Outcome as Outcome
from formation_p2p.core.workload.outcome import Succeeded as Succeeded
from formation_p2p.core.workload.outcome import Usage as Usage
from formation_p2p.core.workload.plan import MemoryEstimate as MemoryEstimate
from formation_p2p.core.workload.plan import Plan as Plan
from formation_p2p.core.workload.plan import PlannedTask as PlannedTask
from formation_p2p.core.workload.process import ContainerSpec as ContainerSpec
from formation_p2p.core.workload.process import ProcessResult as ProcessResult
from formation_p2p.core.workload.process import ProcessSpec as ProcessSpec
from formation_p2p.core.workload.process import WasmSpec as WasmSpec
from formation_p2p.core.workload.scope import Place as Place
from formation_p2p.core.workload.scope import Scope as Scope
from formation_p2p.core.workload.scope import ScopeShares as ScopeShares
from formation_p2p.core.workload.work import PythonCall as PythonCall
from formation_p2p.host.drivers.driver import Driver as Driver
from formation_p2p.host.drivers.driver import Execution as Execution
from formation_p2p.host.drivers.driver import LeaseDriver as LeaseDriver
from formation_p2p.host.drivers.driver import Report as Report
from formation_p2p.host.drivers.driver import Turns as Turns
from formation_p2p.host.environments.settings import EnvironmentSettings as EnvironmentSettings
from formation_p2p.host.machine.hardware import Hardware as Hardware
from formation_p2p.host.machine.home import Home as Home
from formation_p2p.host.policies import parse_policy as parse_policy
from formation_p2p.host.storage.rows import JobSummary as JobSummary
from formation_p2p.host.storage.state import Retention as Retention

__version__ = "0.1.0"
__all__ = [
    *sorted({name for name in dir() if name[0] != "_"} - {"api", "core", "host"}),
    "__version__",
]
