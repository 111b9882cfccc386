"""Protobuf by hand: what no generated module would write, or has a message for."""


def varint(number: int) -> bytes:
    low = b""
    while number > 0x7F:
        low += bytes([number & 0x7F | 0x80])
        number >>= 7
    return low + bytes([number])


def integer(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def octets(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value
