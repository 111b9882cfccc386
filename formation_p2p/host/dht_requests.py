"""Requests of the DHT on their way: those of the peer to others, and those of others to it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, assert_never

from formation_p2p.core.dht import codec, rpc
from formation_p2p.core.dht import messages as kad
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, ProtocolViolation
from formation_p2p.core.peer.events import PeerEvent

if TYPE_CHECKING:
    from formation_p2p.host.net.handlers import Answer
    from formation_p2p.host.net.stack import Stack

# Requests of peers that wait for the peer's answer. It answers at once; this many would mean
# that it does not answer at all.
MAX_UNANSWERED: Final = 4096


class DhtRequests:
    """`do` runs a task of the node's own, and `feed` takes what comes of it."""

    def __init__(
        self, stack: Stack, do: Callable[..., None], feed: Callable[[PeerEvent], None]
    ) -> None:
        self._stack = stack
        self._do = do
        self._feed = feed
        self._ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        """See Handlers."""
        try:
            message, charter = codec.parse_asked(frame, sender.peer_id)
        except ProtocolViolation as violation:
            answer(violation)
            self._stack.offended(sender.peer_id, str(violation))
            return
        if len(self._answers) >= MAX_UNANSWERED:
            answer(None)
            return
        request_id = next(self._ids)
        self._answers[request_id] = answer
        self._feed(rpc.RequestReceived(request_id, sender, message, charter))

    def perform(self, effect: rpc.SendRequest | rpc.SendResponse | rpc.ProbeReachability) -> None:
        match effect:
            case rpc.SendRequest():
                self._do(self._ask, effect)
            case rpc.SendResponse(request_id, message, charter):
                answer = self._answers.pop(request_id)
                answer(None if message is None else codec.encode(message, charter))
            case rpc.ProbeReachability():
                self._do(self._dial_back, effect)
            case _:
                assert_never(effect)

    async def _ask(self, ask: rpc.SendRequest) -> None:
        message = ask.message
        expects_answer = not isinstance(message, kad.AddProvider) or message.acknowledged
        try:
            raw = await self._stack.ask(
                ask.to,
                codec.encode(message, ask.charter),
                timeout_s=ask.timeout_s,
                expects_answer=expects_answer,
                dials_back=isinstance(message, kad.FindNode) and message.dial_back,
            )
            reply, charter = (None, 0) if raw is None else codec.parse_answer(raw, message)
        except ProtocolViolation as violation:
            self._stack.offended(ask.to.peer_id, str(violation))
            self._feed(rpc.RequestFailed(ask.request_id, str(violation)))
        except FormationError as error:
            self._stack.swarm.doubt(ask.to.peer_id)
            self._feed(rpc.RequestFailed(ask.request_id, str(error)))
        else:
            contact = self._stack.contact(ask.to)
            self._feed(rpc.ResponseReceived(ask.request_id, contact, reply, charter))

    async def _dial_back(self, effect: rpc.ProbeReachability) -> None:
        reached = await self._stack.dial_back(effect.to.peer_id, timeout_s=effect.timeout_s)
        self._feed(rpc.ReachabilityProbed(effect.request_id, reached))
