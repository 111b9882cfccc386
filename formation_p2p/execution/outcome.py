from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded

__all__ = ["Failed", "FailureKind", "Outcome", "Succeeded"]
