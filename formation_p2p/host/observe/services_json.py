"""The replicas of services that a node runs, for programs of its user."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from formation_p2p.host.shell import Shell


def replicas_in_json(shell: Shell) -> list[dict[str, Any]]:
    now_unix_s = time.time()
    history = {} if shell.replicas is None else shell.replicas.history
    return [
        {
            "service": each.service,
            "version": each.version,
            "slot": each.slot,
            "phase": each.phase,
            "why": each.why,
            "since_unix_s": int(now_unix_s - each.since_s),
            "starts": each.starts,
            "outstanding": each.outstanding,
            "crash_loop": each.is_in_crash_loop,
            "checks": {
                name: {"holds": holds, "why": why} for name, (holds, why) in each.checks.items()
            },
            "history": [
                {"unix_s": round(note.at_unix_s, 3), "state": note.state.value, "why": note.why}
                for note in history.get(each.service, ())
            ],
        }
        for each in shell.replica_statuses()
    ]
