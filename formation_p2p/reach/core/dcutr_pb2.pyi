from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class HolePunch(_message.Message):
    __slots__ = ("type", "addrs")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    ADDRS_FIELD_NUMBER: _ClassVar[int]
    type: int
    addrs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, type: _Optional[int] = ..., addrs: _Optional[_Iterable[bytes]] = ...) -> None: ...
