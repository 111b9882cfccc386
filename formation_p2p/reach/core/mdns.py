"""Finding the peers of one's own network on one LAN, without a gate: multicast DNS.

A node asks for all peers of its network when it starts, and ever more rarely from then on; and
tells where it listens when it starts, and when it is asked. Nothing is believed
of what another tells but where to dial, and only within the LAN: the handshake proves who is there.

The service's name is made from the network's id by a hash, so that a stranger who listens sees that
some network is there, and not which. One `Link` for each interface and family of addresses.

Sources: libp2p's specification of mDNS discovery, with the service's name as for private networks;
RFC 6762 for times, rates, and what is to be ignored.
"""

from __future__ import annotations

import hashlib
import ipaddress
import itertools
import random
import re
import struct
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.records.core.addresses import MAX_ADDRESSES

# Messages of multicast DNS: those parts that finding peers needs.
#
# Sources: RFC 1035, section 4 (messages, names, compression); RFC 6762, section 18 (what multicast
# DNS makes of the header, and of the class's top bit); RFC 6763, section 6 (TXT records).

# RFC 6762, section 17: no message is larger, with all headers.
MAX_MESSAGE_BYTES: Final = 9000
# A message with more questions or records than this is not from a peer that tells of itself.
MAX_ENTRIES: Final = 64
MAX_LABEL_BYTES: Final = 63
MAX_NAME_BYTES: Final = 255
# Of a name: those of peers have four, those of other services a few more.
MAX_LABELS: Final = 32

PTR: Final = 12
TXT: Final = 16
ANY: Final = 255
_IN: Final = 1
# Of a class: "answer by unicast" in a question, "this replaces what you knew" in a record.
_TOP_BIT: Final = 0x8000
_RESPONSE: Final = 0x8000
# What must be zero (OPCODE, RCODE), or the message is to be ignored.
_MUST_BE_ZERO: Final = 0x780F
# "Authoritative answer", which each response has.
_AUTHORITATIVE: Final = 0x0400
_HEADER: Final = struct.Struct("!6H")
_QUESTION: Final = struct.Struct("!2H")
_RECORD: Final = struct.Struct("!2HIH")

# Labels, from the left, in lower case: names are the same whatever their case.
Name = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Question:
    name: Name
    kind: int


@dataclass(frozen=True, slots=True)
class Record:
    """A PTR record has a `target`, a TXT record `texts`; of others only the name is kept.

    `is_unique`: only one node has a record of this name and kind, so that it replaces what was
    known.
    """

    name: Name
    kind: int
    ttl_s: int
    target: Name = ()
    texts: tuple[bytes, ...] = ()
    is_unique: bool = False


@dataclass(frozen=True, slots=True)
class Message:
    """`records` are those of all sections of a response; of a query, what the asker knows."""

    is_response: bool
    questions: tuple[Question, ...] = ()
    records: tuple[Record, ...] = ()


def parse(raw: bytes) -> Message:
    """Raises ProtocolViolation."""
    if not _HEADER.size <= len(raw) <= MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"a DNS message of {len(raw)} bytes")
    _, flags, questions, answers, authorities, additional = _HEADER.unpack_from(raw)
    records = answers + authorities + additional
    if flags & _MUST_BE_ZERO or questions + records > MAX_ENTRIES:
        raise ProtocolViolation("a DNS message that tells of no peer")
    reader = _Reader(raw)
    return Message(
        bool(flags & _RESPONSE),
        tuple(reader.questions(questions)),
        tuple(reader.records(records)),
    )


def encode(message: Message) -> bytes:
    """Without compression; all of the records of a response are answers."""
    flags = _RESPONSE | _AUTHORITATIVE if message.is_response else 0
    parts = [_HEADER.pack(0, flags, len(message.questions), len(message.records), 0, 0)]
    for question in message.questions:
        parts += (_name(question.name), _QUESTION.pack(question.kind, _IN))
    for record in message.records:
        data = _name(record.target) if record.kind == PTR else _texts(record.texts)
        of_class = _IN | (_TOP_BIT if record.is_unique else 0)
        head = _RECORD.pack(record.kind, of_class, record.ttl_s, len(data))
        parts += (_name(record.name), head, data)
    return b"".join(parts)


def _name(labels: Name) -> bytes:
    return b"".join(bytes((len(label),)) + label for label in labels) + b"\x00"


def _texts(texts: tuple[bytes, ...]) -> bytes:
    """RFC 6763, section 6.1: one empty text where there is none."""
    return b"".join(bytes((len(text),)) + text for text in texts or (b"",))


class _Reader:
    """Goes through a message once. Raises ProtocolViolation."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = _HEADER.size

    def questions(self, count: int) -> Iterator[Question]:
        for _ in range(count):
            name = self._take_name(len(self._raw))
            kind, of_class = self._take(_QUESTION)
            if _is_internet(of_class):
                yield Question(name, kind)

    def records(self, count: int) -> Iterator[Record]:
        for _ in range(count):
            name = self._take_name(len(self._raw))
            kind, of_class, ttl_s, size = self._take(_RECORD)
            end = self._at + size
            if end > len(self._raw):
                raise ProtocolViolation("a DNS record that is cut short")
            target: Name = ()
            texts: tuple[bytes, ...] = ()
            if kind == PTR:
                target = self._take_name(end)
                if self._at != end:
                    raise ProtocolViolation("a PTR record that is not one name")
            elif kind == TXT:
                texts = tuple(_split(self._raw[self._at : end]))
            self._at = end
            if _is_internet(of_class):
                yield Record(name, kind, ttl_s, target, texts, bool(of_class & _TOP_BIT))

    def _take(self, form: struct.Struct) -> tuple[int, ...]:
        if self._at + form.size > len(self._raw):
            raise ProtocolViolation("a DNS message that is cut short")
        values = form.unpack_from(self._raw, self._at)
        self._at += form.size
        return values

    def _take_name(self, end: int) -> Name:
        """Compression: a name may go on where an earlier one stands. Each jump leads further back
        than the one before, so that there is an end."""
        labels: list[bytes] = []
        at, furthest, size, after = self._at, self._at, 0, 0
        while True:
            if at >= end:
                raise ProtocolViolation("a DNS name that is cut short")
            length = self._raw[at]
            if length == 0:
                self._at = after or at + 1
                return tuple(labels)
            if length > MAX_LABEL_BYTES:
                if length < 0xC0 or at + 2 > end:
                    raise ProtocolViolation("a DNS label of no known kind")
                after = after or at + 2
                at = int.from_bytes(self._raw[at : at + 2], "big") & 0x3FFF
                if not _HEADER.size <= at < furthest:
                    raise ProtocolViolation("a DNS name that does not lead back")
                furthest, end = at, len(self._raw)
                continue
            label = self._raw[at + 1 : at + 1 + length]
            at += 1 + length
            size += 1 + length
            labels.append(label.lower())
            if at > end or size >= MAX_NAME_BYTES or len(labels) > MAX_LABELS:
                raise ProtocolViolation("a DNS name that is cut short, or too long")


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        text = data[at + 1 : at + 1 + data[at]]
        if len(text) < data[at]:
            raise ProtocolViolation("a TXT record that is cut short")
        yield text
        at += 1 + data[at]


def _is_internet(of_class: int) -> bool:
    return of_class & ~_TOP_BIT in (_IN, ANY)


Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network

PORT: Final = 5353
GROUP_4: Final = "224.0.0.251"
GROUP_6: Final = "ff02::fb"

# In hexadecimal it fits in a label beside `_p2p-`, and no two networks share it.
_FINGERPRINT_BYTES: Final = 16
# How long other programs may show us after we have left.
TTL_S: Final = 120
# The specification asks for 32 characters at least, and not for the peer's id.
_PEER_NAME_BYTES: Final = 16
# RFC 6762, section 5.2: the wait after each query is twice the one before, an hour at most. Who
# comes later tells of itself.
FIRST_QUERY_S: Final = 1.0
LAST_QUERY_S: Final = 3600.0
# Section 6: what others may say at the same moment waits so long, at random; and one message is
# not sent twice within a second.
DELAY_S: Final = (0.02, 0.12)
AGAIN_S: Final = 1.0
# Section 8.3: twice, for those that missed the first.
ANNOUNCEMENTS: Final = 2
# Of one peer, unless its addresses change: the DHT may have lost it meanwhile.
FOUND_AGAIN_S: Final = 30.0
# Each contact costs a dial, and anybody on the LAN can name any number. A machine runs a few nodes.
MAX_FOUND_PER_SENDER: Final = 8  # in a minute
MAX_FOUND: Final = 64  # in a minute, of all
# One message tells of the node that sent it; others relay a few.
MAX_PEERS_PER_MESSAGE: Final = 4
# To read one takes 20 us.
MAX_TEXTS_PER_MESSAGE: Final = MAX_PEERS_PER_MESSAGE * MAX_ADDRESSES
_MINUTE_S: Final = 60.0
_DNSADDR: Final = b"dnsaddr="
_TCP_ADDRESS: Final = re.compile(
    rb"(?i:dnsaddr)=/(ip[46])/([0-9a-fA-F.:]{2,45})/tcp/([0-9]{1,5})/p2p/([0-9A-Za-z]{1,72})"
)


def service_name(network_id: bytes) -> Name:
    """`_p2p-<fingerprint>._udp.local`."""
    digest = hashlib.sha256(b"formation mdns\x00" + network_id).digest()
    return (b"_p2p-" + digest[:_FINGERPRINT_BYTES].hex().encode(), b"_udp", b"local")


class Link:
    """A node on one link. Hand in `received`; send what `due` returns, once `at_s` has passed."""

    def __init__(
        self,
        own: PeerId,
        service: Name,
        subnets: Iterable[Subnet],
        addresses: tuple[str, ...],
        rng: random.Random,
        now_s: float,
    ) -> None:
        """`subnets` are those of the interface; `addresses` is where we listen on this link, none
        for a node that only looks."""
        self._own = own
        self._service = service
        self._subnets = tuple(subnets)
        self._addresses = addresses[:MAX_ADDRESSES]
        self._rng = rng
        self._instance = (rng.randbytes(_PEER_NAME_BYTES).hex().encode(), *service)
        self._query_at_s = now_s + rng.uniform(*DELAY_S)
        self._query_wait_s = FIRST_QUERY_S
        self._announcements = ANNOUNCEMENTS
        self._tell_at_s = float("inf")
        self._told_s = float("-inf")
        # Contacts told of in the last minute, and by which sender; the oldest first.
        self._found: deque[tuple[float, Ip, Contact]] = deque()
        self._tell(now_s)

    @property
    def at_s(self) -> float:
        return min(self._query_at_s, self._tell_at_s)

    def due(self, now_s: float) -> list[bytes]:
        """The messages to send now."""
        messages = []
        if now_s >= self._query_at_s:
            self._query_at_s = now_s + self._query_wait_s
            self._query_wait_s = min(self._query_wait_s * 2, LAST_QUERY_S)
            messages.append(Message(False, (Question(self._service, PTR),)))
        if now_s >= self._tell_at_s:
            self._tell_at_s, self._told_s = float("inf"), now_s
            self._announcements = max(self._announcements - 1, 0)
            if self._announcements:
                self._tell(now_s)
            messages.append(self._about_us())
        return [encode(message) for message in messages]

    def is_of_service(self, raw: bytes) -> bool:
        """Whether a message may be for this network. Most that come are not."""
        # A name can be compressed, but stands there once.
        return self._service[0] in raw.lower()

    def received(self, raw: bytes, sender: Ip, port: int, now_s: float) -> tuple[Contact, ...]:
        """A message came to the group. Returns peers to dial, each with its addresses here."""
        if not self.is_of_service(raw) or not self._is_on_link(sender):
            return ()
        try:
            message = parse(raw)
        except ProtocolViolation:
            return ()  # there is no connection to end, and anybody can have sent it
        if not message.is_response:
            self._asked(message, now_s)
            return ()
        if port != PORT:
            return ()
        return tuple(
            contact for contact in self._told_of(message) if self._is_news(contact, sender, now_s)
        )

    def _asked(self, query: Message, now_s: float) -> None:
        known = any(
            record.target == self._instance and record.ttl_s >= TTL_S / 2
            for record in query.records
        )
        wanted = any(
            each.name == self._service and each.kind in (PTR, ANY) for each in query.questions
        )
        if wanted and not known:
            self._tell(now_s)

    def _tell(self, now_s: float) -> None:
        """Soon, to all: an answer to one alone could be aimed at another by a false sender."""
        if self._addresses and self._tell_at_s == float("inf"):
            soon_s = now_s + self._rng.uniform(*DELAY_S)
            self._tell_at_s = max(soon_s, self._told_s + AGAIN_S)

    def _about_us(self) -> Message:
        texts = tuple(
            _DNSADDR + f"{address}/p2p/{self._own}".encode() for address in self._addresses
        )
        return Message(
            True,
            (),
            (
                Record(self._service, PTR, TTL_S, target=self._instance),
                Record(self._instance, TXT, TTL_S, texts=texts, is_unique=True),
            ),
        )

    def _told_of(self, response: Message) -> Iterator[Contact]:
        texts = (
            text
            for record in response.records
            if record.kind == TXT and record.name[1:] == self._service and record.ttl_s
            for text in record.texts
        )
        found: dict[PeerId, dict[str, None]] = {}
        for read in map(self._read, itertools.islice(texts, MAX_TEXTS_PER_MESSAGE)):
            if read is not None:
                address, peer_id = read
                if peer_id in found or len(found) < MAX_PEERS_PER_MESSAGE:
                    found.setdefault(peer_id, {})[address] = None
        for peer_id, addresses in found.items():
            yield Contact(peer_id, tuple(addresses)[:MAX_ADDRESSES])

    def _read(self, text: bytes) -> tuple[str, PeerId] | None:
        """None unless it is a TCP address of another peer on this link."""
        match = _TCP_ADDRESS.fullmatch(text)
        if match is None:
            return None
        family, host, port, peer = (part.decode() for part in match.groups())
        try:
            ip, peer_id = ipaddress.ip_address(host), parse_peer_id(peer)
        except ValueError:
            return None
        if peer_id == self._own or family != f"ip{ip.version}" or not 0 < int(port) < 65_536:
            return None
        if not any(ip in subnet for subnet in self._subnets):
            return None  # a third party's, or it leads elsewhere from here
        return f"/{family}/{ip}/tcp/{int(port)}", peer_id

    def _is_news(self, contact: Contact, sender: Ip, now_s: float) -> bool:
        while self._found and self._found[0][0] <= now_s - _MINUTE_S:
            self._found.popleft()
        if any(contact == known and at_s > now_s - FOUND_AGAIN_S for at_s, _, known in self._found):
            return False
        senders = Counter(each for _, each, _ in self._found)
        if len(self._found) >= MAX_FOUND or senders[sender] >= MAX_FOUND_PER_SENDER:
            return False
        self._found.append((now_s, sender, contact))
        return True

    def _is_on_link(self, sender: Ip) -> bool:
        """RFC 6762, section 11."""
        return sender.is_link_local or any(sender in subnet for subnet in self._subnets)
