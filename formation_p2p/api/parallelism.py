"""How many calls the workers of a network run at once."""

from __future__ import annotations

from formation_p2p.api.bridge import Bridge
from formation_p2p.core.errors import Unplaceable
from formation_p2p.core.placement.task_options import TaskOptions
from formation_p2p.core.resources.capability import Capability, amounts
from formation_p2p.core.resources.gpu import WHOLE_GPU_MILLI
from formation_p2p.core.resources.requirements import Requirements


def how_many_fit(bridge: Bridge, options: TaskOptions) -> int:
    """From any thread, which waits. See `NodeExecutor.parallelism`."""
    key = options.scheduling_key(options.needs)
    decision = bridge.explain_and_wait(key, "a call").decision
    if not decision.ranked:
        reasons = {str(peer_id): str(refusal) for peer_id, refusal in decision.rejected}
        listed = "; ".join(f"{peer_id}: {why}" for peer_id, why in reasons.items())
        problem = listed or "none was found; is one running in this network?"
        raise Unplaceable(f"no worker can run a call: {problem}", reasons)
    return sum(_fit(each.profile.capability, options.needs) for each in decision.ranked)


def _fit(capability: Capability, needs: Requirements) -> int:
    """At least one, where discovery found that it fits."""
    pairs = zip(amounts(capability), amounts(needs), strict=True)
    fits = [has // need for has, need in pairs if need]
    if needs.gpu_count:
        shares = needs.gpu_count * needs.gpu_share_milli
        fits.append(len(capability.gpus) * WHOLE_GPU_MILLI // shares)
    return max(1, min(fits))
