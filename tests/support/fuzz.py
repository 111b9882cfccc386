"""Messages for a node from a peer that draws them: of the DHT, and of the work protocol."""

import random

from formation_p2p.core.refusals import Leaving
from formation_p2p.core.units import MIB
from formation_p2p.dht.core import kad_pb2
from formation_p2p.leases.core.messages import (
    AskGrant,
    AskOpinions,
    Assignment,
    Cancel,
    Commit,
    Dispatch,
    GrantIssued,
    GrantRefused,
    Opinions,
    PlacementRequest,
    Release,
    Renew,
    ResultAck,
    WorkMessage,
    pack,
)
from formation_p2p.machine.core.requirements import Requirements

SMALL = Requirements(driver="process", cpu_milli=100, memory_bytes=64 * MIB)


def kad_message(rng: random.Random) -> bytes:
    """One that parses, in fields that no implementation fills so; one in ten is any bytes."""
    wire = kad_pb2.Message(
        type=rng.randrange(6),  # type: ignore[arg-type]
        key=rng.randbytes(rng.choice([0, 1, 34, 128, 129])),
        clusterLevelRaw=rng.choice([0, -1, 2**31 - 1]),
        moreKeys=[rng.randbytes(rng.choice([1, 34, 129])) for _ in range(rng.choice([0, 70]))],
        acknowledged=rng.random() < 0.5,
        dialBack=rng.random() < 0.5,
        reached=rng.random() < 0.5,
    )
    if rng.random() < 0.7:
        wire.query.target = rng.randbytes(rng.choice([0, 32]))
        wire.query.requirements = rng.choice([b"", b"\x81" * 2000, rng.randbytes(100)])
        wire.query.limit = rng.choice([0, 1, 2**32 - 1])
    for _ in range(rng.choice([0, 1, 1, 30])):
        peer = wire.providerPeers.add(id=b"\x00\x24" + rng.randbytes(36))
        peer.profile = rng.randbytes(rng.choice([0, 10, 300]))
        peer.addrs.extend(rng.randbytes(rng.choice([1, 8, 100])) for _ in range(9))
    wire.record.value = rng.randbytes(rng.choice([0, 100, 5000]))
    raw: bytes = wire.SerializeToString()
    return raw if rng.random() < 0.9 else rng.randbytes(rng.randrange(50))


def junk_dispatch(rng: random.Random, lease_id: str, fence: int) -> Dispatch:
    """Work that no driver can read, under a lease that may be a real one."""
    number = rng.getrandbits(30) + 1
    payload = rng.randbytes(rng.choice([0, 1, 40, 3000]))
    shared = ((number, rng.randbytes(30)),) if rng.random() < 0.5 else ()
    blob = rng.choice([0, number, 7])
    return Dispatch(lease_id, fence, shared, (Assignment(f"fuzz/{number}#1", blob, payload, 500),))


def work_frame(rng: random.Random, grant: bytes) -> bytes:
    """A message of any kind on this grant, half of the time with some bytes changed."""
    lease_id = f"{rng.getrandbits(64):016x}"
    number = rng.getrandbits(rng.choice([3, 30, 62]))
    ids = tuple(f"j/{rng.randrange(9)}#{n}" for n in range(rng.choice([0, 1, 40])))
    messages: list[WorkMessage] = [
        PlacementRequest(number, SMALL, rng.choice([grant, b"", rng.randbytes(200)])),
        Commit(lease_id),
        Renew(lease_id, number),
        Release(lease_id),
        junk_dispatch(rng, lease_id, number),
        Cancel(lease_id, ids, rng.random() < 0.5),
        ResultAck(lease_id, ids),
        AskOpinions(grant),
        AskGrant(rng.choice([grant, b"", rng.randbytes(200)])),
        GrantIssued(rng.choice([grant, rng.randbytes(200)])),
        GrantRefused(Leaving()),
        Opinions((rng.randbytes(100),)),
    ]
    frame = bytearray(pack(rng.choice(messages)))
    if rng.random() < 0.5:
        for _ in range(rng.choice([1, 1, 8])):
            frame[rng.randrange(len(frame))] = rng.randrange(256)
        del frame[rng.randrange(1, len(frame) + 1) :]
    return bytes(frame)
