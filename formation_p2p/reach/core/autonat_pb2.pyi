from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DialRequest(_message.Message):
    __slots__ = ("addrs", "nonce")
    ADDRS_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    addrs: _containers.RepeatedScalarFieldContainer[bytes]
    nonce: int
    def __init__(self, addrs: _Optional[_Iterable[bytes]] = ..., nonce: _Optional[int] = ...) -> None: ...

class DialResponse(_message.Message):
    __slots__ = ("status", "addrIdx", "dialStatus")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    ADDRIDX_FIELD_NUMBER: _ClassVar[int]
    DIALSTATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    addrIdx: int
    dialStatus: int
    def __init__(self, status: _Optional[int] = ..., addrIdx: _Optional[int] = ..., dialStatus: _Optional[int] = ...) -> None: ...

class DialDataRequest(_message.Message):
    __slots__ = ("addrIdx", "numBytes")
    ADDRIDX_FIELD_NUMBER: _ClassVar[int]
    NUMBYTES_FIELD_NUMBER: _ClassVar[int]
    addrIdx: int
    numBytes: int
    def __init__(self, addrIdx: _Optional[int] = ..., numBytes: _Optional[int] = ...) -> None: ...

class DialDataResponse(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("dialRequest", "dialResponse", "dialDataRequest", "dialDataResponse")
    DIALREQUEST_FIELD_NUMBER: _ClassVar[int]
    DIALRESPONSE_FIELD_NUMBER: _ClassVar[int]
    DIALDATAREQUEST_FIELD_NUMBER: _ClassVar[int]
    DIALDATARESPONSE_FIELD_NUMBER: _ClassVar[int]
    dialRequest: DialRequest
    dialResponse: DialResponse
    dialDataRequest: DialDataRequest
    dialDataResponse: DialDataResponse
    def __init__(self, dialRequest: _Optional[_Union[DialRequest, _Mapping]] = ..., dialResponse: _Optional[_Union[DialResponse, _Mapping]] = ..., dialDataRequest: _Optional[_Union[DialDataRequest, _Mapping]] = ..., dialDataResponse: _Optional[_Union[DialDataResponse, _Mapping]] = ...) -> None: ...

class DialBack(_message.Message):
    __slots__ = ("nonce",)
    NONCE_FIELD_NUMBER: _ClassVar[int]
    nonce: int
    def __init__(self, nonce: _Optional[int] = ...) -> None: ...

class DialBackResponse(_message.Message):
    __slots__ = ("status",)
    STATUS_FIELD_NUMBER: _ClassVar[int]
    status: int
    def __init__(self, status: _Optional[int] = ...) -> None: ...
