"""What is made of data goes to the owner of the job, who is to be inside its rule."""

from dataclasses import replace

from formation_p2p.drivers.core.executions import outside, process_of
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import TaskGaveUp, TaskSucceeded
from formation_p2p.peer.core.events import OfferCharter
from formation_p2p.trust.core.charter import Region
from formation_p2p.trust.core.grants import Rights
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.scope import Place
from formation_p2p.workload.core.work import Task
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.charters import charter_of
from tests.support.stories import NEEDS

PYTHON = replace(NEEDS, driver="python")
DATA = Blob(Cid(RAW, digest_of(b"data")), 4, rule=DataRule(region="eu"))
OPEN = replace(DATA, rule=None)


def test_a_worker_runs_no_task_whose_owner_may_not_have_what_it_makes() -> None:
    world = World(7)
    world.add("gate")
    inside, abroad = place("acme"), place("beta")
    alice = world.add("alice", serve=world.machine(cpu=2), rights=inside)
    bob, carol = world.add("bob", rights=inside), world.add("carol", rights=abroad)
    world.elapse(5)
    charter = charter_of(world, regions=(Region("eu", frozenset({"acme"})),))
    world.deliver(alice, OfferCharter(charter.raw))
    world.elapse(60)
    for node in (alice, bob, carol):
        node.submit(reading(node, DATA))
    carol.submit(reading(carol, OPEN, "open"))
    world.elapse(60)
    assert ended(alice) == {alice.name: ""}
    assert ended(bob) == {bob.name: ""}
    ends = ended(carol)
    assert ends["open"] == ""
    assert "keeps it in the region eu, and the charter has you in no region" in ends["carol"]
    assert "what is made of 'patients.csv' is not for you" in ends["carol"]


def test_rules_are_those_of_inputs() -> None:
    def never(rule: DataRule) -> str:
        return f"keeps it in {rule.region}"

    payload = ProcessSpec(("true",), inputs={"patients.csv": DATA}).encode()
    assert "keeps it in eu" in str(outside(process_of(NEEDS, payload, b""), never))
    assert process_of(PYTHON, payload, b"") is process_of(NEEDS, b"no process", b"") is None
    assert outside(None, never) is None


def place(org: str) -> Rights:
    return Rights(int(EPOCH_UNIX_S) + 9999, place=Place(org=org))


def reading(node: SimNode, blob: Blob, job_id: str = "") -> Job:
    payload = ProcessSpec(("true",), inputs={"patients.csv": blob}).encode()
    job_id = job_id or node.name
    return Job(job_id, (Task(f"{job_id}/0", NEEDS, payload),))


def ended(node: SimNode) -> dict[str, str]:
    """How each job of a node did: why not, or empty."""
    ends: dict[str, str] = {}
    for event in node.reported:
        match event:
            case TaskSucceeded(task_id=task_id):
                ends[task_id.partition("/")[0]] = ""
            case TaskGaveUp(task_id=task_id):
                ends[task_id.partition("/")[0]] = str(event)
            case _:
                pass
    return ends
