"""What the scheduler asks of the shell."""

from __future__ import annotations

from formation_p2p.core.dispatch.fetch import (
    CopyOutputs,
    DropCheckpoints,
    FetchResult,
    KeepCheckpoint,
    SpreadCheckpoint,
    StopFetch,
)
from formation_p2p.core.dispatch.job_events import EmitJobEvent, ForgetLease, PersistLease
from formation_p2p.core.negotiation.session import Send

SchedulerEffect = (
    EmitJobEvent
    | PersistLease
    | ForgetLease
    | FetchResult
    | CopyOutputs
    | StopFetch
    | KeepCheckpoint
    | SpreadCheckpoint
    | DropCheckpoints
    | Send
)
