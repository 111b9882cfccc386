"""A hostile grant, evaluated by Biscuit's own engine under its time limit, and read by us.

    python -m benchmarks.grants [--json]

The engine runs in a process of its own, which is ended after a minute if need be.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from biscuit_auth import AuthorizationError, AuthorizerBuilder, Biscuit, BlockBuilder, PublicKey

from formation_p2p.identity import Identity
from formation_p2p.trust.grants import Right, Rights, check, issue

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
    figures = {
        "grant_bytes": len(grant),
        "engine_limit_s": LIMIT.total_seconds(),
        "engine_s": round(engine_s, 2),
        "engine_ended_by_itself": ended,
        "read_s": round(read_s, 6),
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
