"""What an owner tells of its gangs: who has each rank, and what was reported of it."""

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from formation_p2p.features.gangs.core.events import MemberReplaced, UsageMeasured
from formation_p2p.features.gangs.core.gang import GangState, GangStatus, MemberState
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.features.gangs.core.usage import LeaseUsage, LinkBytes
from formation_p2p.features.gangs.host.gangs_json import gang_metrics
from tests.support.stories import peer_of
from tests.unit.test_gang_world import GANG, NEEDS, Gangs


def told(gangs: Gangs) -> tuple[GangStatus, ...]:
    return peer_of(gangs.bob).gangs.status()


def states(gangs: Gangs) -> list[str]:
    return [member.state.value for member in told(gangs)[0].members]


def report(gangs: Gangs, rank: int, *links: LinkBytes) -> None:
    member = told(gangs)[0].members[rank]
    lease = peer_of(gangs.bob).gangs.gangs[GANG].leases[rank]
    node = next(x for x in gangs.workers.values() if x.contact.peer_id == member.worker)
    usage = LeaseUsage(lease.lease_id, lease.fence, 700, 64, links)
    gangs.world.deliver(node, UsageMeasured((usage,)))
    gangs.world.elapse(1)


def test_a_gang_tells_who_has_each_rank_and_what_that_uses() -> None:
    gangs = Gangs("alice", "carol", "dave")
    gangs.form(GangSpec((NEEDS,) * 2))
    (forming,) = told(gangs)
    assert forming.state is GangState.FORMING
    assert [(each.state, each.worker) for each in forming.members] == [
        (MemberState.SOUGHT, None)
    ] * 2
    gangs.world.elapse(2)
    (formed,) = told(gangs)
    assert formed.state is GangState.FORMED
    assert states(gangs) == ["held", "held"]
    assert [each.worker for each in formed.members] == [
        each.peer_id for each in gangs.formed().members
    ]
    for each in formed.members:
        assert each.since_unix_s is not None
        assert each.since_unix_s >= formed.since_unix_s
    assert [each.used for each in formed.members] == [None, None]
    assert formed.between == {}

    report(gangs, 0, LinkBytes(OWNER, 5, 7), LinkBytes(1, 300, 0))
    report(gangs, 1, LinkBytes(0, 40, 200))
    (used,) = told(gangs)
    assert [each.used.cpu_milli for each in used.members if each.used] == [700, 700]
    assert dict(used.between) == {(0, 1): 300, (1, 0): 40, (0, OWNER): 5, (OWNER, 0): 7}
    assert next(iter(used.between)) == (0, 1)

    lost = next(x for x in gangs.workers.values() if x.contact.peer_id == used.members[1].worker)
    gangs.world.kill(lost)
    seen = {tuple(states(gangs))}
    while not gangs.events(MemberReplaced):
        gangs.world.elapse(0.02)
        seen.add(tuple(states(gangs)))
    assert {("held", "suspect"), ("held", "lost")} <= seen
    (mended,) = told(gangs)
    assert states(gangs) == ["held", "held"]
    assert mended.members[1].worker != used.members[1].worker
    assert mended.members[1].used is None
    assert mended.members[0].used is not None
    gangs.bob.close(GANG)
    gangs.world.elapse(1)
    assert told(gangs) == ()


class _Gangs(Collector):
    def __init__(self, *gangs: GangStatus) -> None:
        self._gangs = gangs

    def collect(self) -> list[Metric]:
        return list(gang_metrics(self._gangs, 3))


def test_metrics_tell_the_same() -> None:
    gangs = Gangs("alice", "carol").after(GangSpec((NEEDS,) * 2), 2)
    report(gangs, 1, LinkBytes(OWNER, 5, 7), LinkBytes(0, 300, 0))
    registry = CollectorRegistry()
    registry.register(_Gangs(*told(gangs)))
    lines = generate_latest(registry).decode().splitlines()
    gang = f'gang="{told(gangs)[0].gang_id}"'
    assert {line for line in lines if not line.startswith("#")} == {
        f'formation_gang_members{{{gang},state="held"}} 2.0',
        f'formation_gang_members{{{gang},state="suspect"}} 0.0',
        f'formation_gang_members{{{gang},state="lost"}} 0.0',
        f'formation_gang_members{{{gang},state="sought"}} 0.0',
        f'formation_gang_cpu_cores{{{gang},rank="1"}} 0.7',
        f'formation_gang_memory_bytes{{{gang},rank="1"}} 64.0',
        f'formation_gang_bytes_total{{{gang},source="1",target="0"}} 300.0',
        f'formation_gang_bytes_total{{{gang},source="1",target="owner"}} 5.0',
        f'formation_gang_bytes_total{{{gang},source="owner",target="1"}} 7.0',
        "formation_gang_members_hosted 3.0",
    }
