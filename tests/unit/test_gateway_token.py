"""Tokens for programs without a key: how they are read, and what they allow."""

import base64
from dataclasses import replace

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.gateway.token import (
    MAX_NAME_CHARS,
    MAX_TOKEN_BYTES,
    Bearer,
    Token,
    grant_in,
    make_token,
    read_token,
)
from formation_p2p.trust.core.grants import Right
from simulations.simulator.world import EPOCH_UNIX_S, World

MEMBER = World(1).add("gate")
NETWORK = MEMBER.network()
ENDS = int(EPOCH_UNIX_S) + 60
SUBMITS = frozenset({Right.SUBMIT})


def made(name: str = "curl") -> str:
    return make_token(MEMBER.identity, NETWORK, SUBMITS, ENDS, name)


def test_a_token_is_read_as_it_was_made() -> None:
    peer_id, network_id = MEMBER.identity.peer_id, NETWORK.network_id
    for name in ("", "n" * MAX_NAME_CHARS):
        token = Token(peer_id, network_id, name, ENDS, SUBMITS, NETWORK.grant)
        assert read_token(made(name)) == token
    for wrong in ("n" * (MAX_NAME_CHARS + 1), "two\nlines"):
        with pytest.raises(InvalidInput, match="characters that print"):
            made(wrong)
    with pytest.raises(InvalidInput, match="name some of these"):
        make_token(MEMBER.identity, NETWORK, frozenset(), ENDS)


def test_it_allows_its_rights_in_its_network_until_it_expires() -> None:
    token = read_token(made())
    assert isinstance(token, Token)
    assert token.denied(NETWORK, Right.SUBMIT, ENDS - 0.1) is None
    assert token.denied(NETWORK, None, ENDS - 0.1) is None
    assert "has expired" in (token.denied(NETWORK, Right.SUBMIT, ENDS) or "")
    assert token.denied(NETWORK, Right.WORK, ENDS - 1) == "the token gives no right to work"
    foreign = replace(token, network_id=bytes(32))
    assert foreign.denied(NETWORK, None, ENDS - 1) == "the token is of another network"


def test_the_longest_text_is_read_and_no_longer_one() -> None:
    raw = bytes(MAX_TOKEN_BYTES)
    text = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    assert grant_in(text) == raw
    assert read_token(text) == Bearer(raw)
    with pytest.raises(InvalidInput, match="too long"):
        grant_in("A" * (MAX_TOKEN_BYTES * 4 // 3 + 5))


@pytest.mark.parametrize(
    "text", [made()[:-9], made().replace("_", "_A", 1), "fgt1_", "not base64!"]
)
def test_what_is_cut_or_altered_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="incomplete or was altered") as refused:
        read_token(text)
    assert made()[10:40] not in str(refused.value), "a log may have it"
