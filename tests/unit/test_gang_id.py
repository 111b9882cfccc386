"""The name of a gang is its owner's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import Identity
from formation_p2p.features.gangs.core.gang_id import HALF_BYTES, gang_id_of, is_gang_of
from formation_p2p.leases.core.roster import GANG_ID_CHARS

ALICE, MALLORY = (Identity.from_seed(bytes((number,)) * 32).peer_id for number in (1, 2))


@given(st.binary(min_size=HALF_BYTES, max_size=HALF_BYTES))
def test_a_gang_is_of_the_one_who_named_it_and_of_no_other(drawn: bytes) -> None:
    gang_id = gang_id_of(ALICE, drawn)
    assert len(gang_id) == GANG_ID_CHARS
    assert is_gang_of(gang_id, ALICE)
    assert not is_gang_of(gang_id, MALLORY)


@pytest.mark.parametrize("foreign", ["", "x" * GANG_ID_CHARS, "ab" * (GANG_ID_CHARS // 2)])
def test_a_name_of_another_form_is_of_no_owner(foreign: str) -> None:
    assert not is_gang_of(foreign, ALICE)
