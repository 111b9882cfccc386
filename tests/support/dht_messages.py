"""The messages of the DHT, read without the version of the charter that comes with each."""

from __future__ import annotations

from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.messages import Reply, Request, parse_answer, parse_asked


def parse_request(raw: bytes, sender: PeerId | None = None) -> Request:
    return parse_asked(raw, sender)[0]


def parse_reply(raw: bytes, request: Request) -> Reply | None:
    return parse_answer(raw, request)[0]
