"""What a command and the node of its machine tell each other."""

from __future__ import annotations

import pytest

from formation_p2p.cli.local.values import pack, unpack_as
from formation_p2p.core.workload.environment import Env


@pytest.mark.parametrize(
    "env", [Env(["numpy>=2"]), Env(()), Env("/requirements.txt", "3.12"), None]
)
def test_packages_may_be_listed_or_named_by_a_file(env: Env | None) -> None:
    assert unpack_as(Env | None, pack(env)) == env
