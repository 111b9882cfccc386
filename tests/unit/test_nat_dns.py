"""DNS messages: the vectors of the RFCs' rules, and what is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.reach.core.mdns import (
    ANY,
    MAX_ENTRIES,
    MAX_LABELS,
    MAX_MESSAGE_BYTES,
    PTR,
    TXT,
    Message,
    Question,
    Record,
    encode,
    parse,
)

SERVICE = (b"_p2p", b"_udp", b"local")
INSTANCE = (b"abc", *SERVICE)
WIRE = b"\x04_p2p\x04_udp\x05local\x00"
QUERY = b"\0\0\0\0\0\1\0\0\0\0\0\0" + WIRE + b"\0\x0c\0\1"


def header(questions: int = 0, answers: int = 0, flags: int = 0x8400) -> bytes:
    return struct.pack("!6H", 0, flags, questions, answers, 0, 0)


def record(
    name: bytes, kind: int, data: bytes, of_class: int = 1, size: int | None = None
) -> bytes:
    return (
        name + struct.pack("!2HIH", kind, of_class, 120, len(data) if size is None else size) + data
    )


def test_a_query_is_as_the_rfc_writes_it() -> None:
    query = Message(False, (Question(SERVICE, PTR),))
    assert encode(query) == QUERY
    assert parse(QUERY) == query


def test_a_response_comes_back_as_it_was() -> None:
    response = Message(
        True,
        (),
        (
            Record(SERVICE, PTR, 120, target=INSTANCE),
            Record(INSTANCE, TXT, 120, texts=(b"dnsaddr=/ip4/10.0.0.1", b""), is_unique=True),
        ),
    )
    assert parse(encode(response)) == response


def test_a_txt_record_without_texts_has_one_empty_one() -> None:
    (read,) = parse(encode(Message(True, (), (Record(INSTANCE, TXT, 120),)))).records
    assert read.texts == (b"",)
    (nothing,) = parse(header(answers=1) + record(WIRE, TXT, b"")).records
    assert nothing.texts == ()


def test_names_are_followed_where_they_are_compressed() -> None:
    """RFC 1035, section 4.1.4: a pointer ends a name, also one that is pointed at itself."""
    # At 12 the service, whose "_udp.local" begins at 17.
    answer = record(WIRE, PTR, b"\x03abc\xc0\x0c")
    other = record(b"\x03ABC\xc0\x0c", TXT, b"\x01x", of_class=0x8001)
    third = record(b"\x05_http\xc0\x11", PTR, b"\xc0\x0c")
    read = parse(header(answers=3) + answer + other + third).records
    assert read[0] == Record(SERVICE, PTR, 120, target=INSTANCE)
    assert read[1] == Record(INSTANCE, TXT, 120, texts=(b"x",), is_unique=True)
    assert read[2] == Record((b"_http", b"_udp", b"local"), PTR, 120, target=SERVICE)


def test_records_of_other_kinds_keep_their_name_alone() -> None:
    address = record(WIRE, 1, b"\x0a\0\0\1")
    assert parse(header(answers=1) + address).records == (Record(SERVICE, 1, 120),)


def test_what_is_of_another_class_is_left_out() -> None:
    chaos = record(WIRE, TXT, b"\x01x", of_class=3)
    assert parse(header(answers=1) + chaos).records == ()
    assert parse(header(questions=1, flags=0) + WIRE + b"\0\x0c\0\3").questions == ()
    of_any = parse(header(questions=1, flags=0) + WIRE + b"\0\xff\x80\xff").questions
    assert of_any == (Question(SERVICE, ANY),)


LOOP = b"\xc0\x0c"
REFUSED = {
    "nothing": b"",
    "a header that is cut short": header()[:11],
    "more than any message has": header() + bytes(MAX_MESSAGE_BYTES),
    "another opcode": header(flags=0x0800),
    "an error": header(flags=0x8403),
    "too many entries": header(answers=MAX_ENTRIES + 1) + record(WIRE, 1, b"") * (MAX_ENTRIES + 1),
    "fewer questions than it says": header(questions=2, flags=0) + WIRE + b"\0\x0c\0\1",
    "a question without its kind": header(questions=1, flags=0) + WIRE + b"\0",
    "a pointer to itself": header(answers=1) + record(LOOP, PTR, b"\0"),
    "a pointer ahead": header(answers=1) + record(b"\xc0\x10", PTR, b"\0") + WIRE,
    "a pointer into the header": header(answers=1) + record(b"\xc0\x00", PTR, b"\0"),
    "two that point at each other": header(answers=2)
    + record(WIRE, 1, b"\xc0\x2b")
    + record(b"\x01a\xc0\x2b", PTR, b"\0"),
    "a pointer of one byte": header(answers=1) + b"\xc0",
    "a pointer that leaves its record": header(answers=1) + record(WIRE, PTR, b"\xc0\x0c", size=1),
    "a label of 64 bytes": header(answers=1) + record(b"\x40" + b"a" * 64 + b"\0", PTR, b"\0"),
    "a label that ends elsewhere": header(answers=1) + record(WIRE, PTR, b"\x05ab", size=3),
    "a name without an end": header(answers=1) + b"\x03abc",
    "a name of 256 bytes": header(answers=1)
    + record((b"\x3f" + b"a" * 63) * 4 + b"\0", PTR, b"\0"),
    "a name of too many labels": header(answers=1)
    + record(b"\x01a" * (MAX_LABELS + 1) + b"\0", PTR, b"\0"),
    "a record without its data": header(answers=1) + record(WIRE, TXT, b"", size=4),
    "a record without its length": header(answers=1) + WIRE + b"\0\x10\0\1\0\0\0\x78",
    "a PTR record of no bytes": header(answers=1) + record(WIRE, PTR, b""),
    "a PTR record of more than a name": header(answers=1) + record(WIRE, PTR, b"\x01a\0\0"),
    "a text longer than its record": header(answers=1) + record(WIRE, TXT, b"\x05ab"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_no_message_is_refused(what: str) -> None:
    with pytest.raises(ProtocolViolation):
        parse(REFUSED[what])


def test_a_name_of_255_bytes_is_read() -> None:
    name = (b"\x3f" + b"a" * 63) * 3 + b"\x3d" + b"b" * 61 + b"\0"
    assert len(name) == 255
    (read,) = parse(header(answers=1) + record(name, 1, b"")).records
    assert list(map(len, read.name)) == [63, 63, 63, 61]


labels = st.binary(min_size=1, max_size=20).map(bytes.lower)
names = st.lists(labels, min_size=1, max_size=6).map(tuple)
texts = st.lists(st.binary(max_size=60), min_size=1, max_size=5).map(tuple)
ttls = st.integers(0, 2**32 - 1)
records = st.builds(Record, names, st.just(PTR), ttls, target=names) | st.builds(
    Record, names, st.just(TXT), ttls, texts=texts, is_unique=st.booleans()
)
messages = st.builds(
    Message,
    st.booleans(),
    st.lists(st.builds(Question, names, st.integers(0, 65_535)), max_size=3).map(tuple),
    st.lists(records, max_size=6).map(tuple),
)


@given(messages)
def test_every_message_comes_back(message: Message) -> None:
    assert parse(encode(message)) == message


@given(st.binary(max_size=300) | messages.map(encode), st.data())
def test_damaged_messages_are_read_or_refused(raw: bytes, data: st.DataObject) -> None:
    damaged = bytearray(raw)
    for _ in range(data.draw(st.integers(0, 4))):
        if damaged:
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        message = parse(bytes(damaged))
    except ProtocolViolation:
        return
    assert len(message.questions) + len(message.records) <= MAX_ENTRIES
