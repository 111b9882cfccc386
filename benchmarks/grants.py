"""A hostile grant, evaluated by Biscuit's own engine under its time limit, and read by us; and what
a worker's check of a grant with every limit costs, the first time and from then on.

    python -m benchmarks.grants [--json]

The engine runs in a process of its own, which is ended after a minute if need be.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import timeit
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from biscuit_auth import AuthorizationError, AuthorizerBuilder, Biscuit, BlockBuilder, PublicKey

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import Identity
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.grants import Right, Rights, attenuate, bind, check, issue
from formation_p2p.trust.core.hours import parse_hours
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.quota import Quota
from formation_p2p.trust.core.statements import Block
from formation_p2p.workload.core.scope import Place

ROOT: Final = Identity.from_seed(bytes(32))
ALICE: Final = Identity.from_seed(bytes(31) + b"\x01").peer_id
KEY: Final = PublicKey(f"ed25519/{ROOT.public_key.hex()}")
LIMIT: Final = timedelta(milliseconds=20)
END_S: Final = 60.0
NOW: Final = 1_767_225_600

# Thirty facts, joined six times: 729 million combinations inside one check.
COSTLY: Final = "".join(f"a({n});" for n in range(30)) + (
    "check if a($u), a($v), a($w), a($x), a($y), a($z), $u + $v + $w + $x + $y + $z < 0;"
)


def hostile_grant() -> bytes:
    """What any holder of a grant can make of it, offline."""
    token = Biscuit.from_bytes(issue(ROOT, Rights(NOW + 60), ALICE), KEY)
    return bytes(token.append(BlockBuilder(COSTLY)).to_bytes())


def evaluate(grant: bytes) -> None:
    # Its stubs do not know of the limits.
    builder: Any = AuthorizerBuilder('allow if right("submit")')
    limits = builder.limits()
    limits.max_time = LIMIT
    builder.set_limits(limits)
    with suppress(AuthorizationError):  # refused in the end: the question is when
        builder.build(Biscuit.from_bytes(grant, KEY)).authorize()


def limited_grant() -> bytes:
    """With every limit that there is, narrowed once."""
    rights = Rights(
        NOW + 60,
        frozenset({Right.SUBMIT}),
        frozenset({"process", "python"}),
        5,
        Quota(10**9, 10**9, 1000),
        parse_hours("mon-sun 00:00-24:00"),
        frozenset({("site", "lab")}),
        Place(cell="kitchen", org="acme", federation="north"),
    )
    grant = issue(ROOT, rights)
    return bind(
        attenuate(grant, ROOT.public_key, Block(quota=Quota(10**8))), ROOT.public_key, ALICE
    )


def admission() -> tuple[float, float, float]:
    """Microseconds of a worker's first check of a grant, of another, and of charging a lease."""
    judge, grant = (
        AdmissionController(Membership(ROOT.public_key), {"site": "lab"}),
        limited_grant(),
    )
    needs, now = Requirements(driver="process"), Moment(0.0, NOW)

    def check_once() -> None:
        denied = judge.denied(grant, ALICE, needs, 5, now, another=True)
        assert denied is None, denied

    began = time.perf_counter()
    check_once()
    first_s = time.perf_counter() - began
    check_s = min(timeit.repeat(check_once, number=1000, repeat=5)) / 1000
    judge.opened("lease", grant, 1000, 0)
    judge.began("lease", now)
    began = time.perf_counter()
    for second in range(10_000):
        judge.charge("lease", second + 1.0, now)
    charge_s = (time.perf_counter() - began) / 10_000
    return round(first_s * 1e6, 1), round(check_s * 1e6, 2), round(charge_s * 1e6, 2)


def main(as_json: bool) -> None:
    grant = hostile_grant()
    engine = multiprocessing.get_context("spawn").Process(target=evaluate, args=(grant,))
    began = time.perf_counter()
    engine.start()
    engine.join(END_S)
    engine_s = time.perf_counter() - began
    ended = not engine.is_alive()
    engine.kill()
    engine.join()
    began = time.perf_counter()
    check(grant, ROOT.public_key, ALICE, Right.SUBMIT, NOW)
    read_s = time.perf_counter() - began
    first_us, denied_us, charge_us = admission()
    figures = {
        "grant_bytes": len(grant),
        "engine_limit_s": LIMIT.total_seconds(),
        "engine_s": round(engine_s, 2),
        "engine_ended_by_itself": ended,
        "read_s": round(read_s, 6),
        "limited_grant_bytes": len(limited_grant()),
        "first_check_us": first_us,
        "check_us": denied_us,
        "charge_us": charge_us,
    }
    if as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:24} {value}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    main(parser.parse_args().json)
