from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Identify(_message.Message):
    __slots__ = ("public_key", "listen_addrs", "protocols", "observed_addr", "protocol_version", "agent_version", "unix_ms", "run_id", "is_twin")
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    LISTEN_ADDRS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOLS_FIELD_NUMBER: _ClassVar[int]
    OBSERVED_ADDR_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    UNIX_MS_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    IS_TWIN_FIELD_NUMBER: _ClassVar[int]
    public_key: bytes
    listen_addrs: _containers.RepeatedScalarFieldContainer[bytes]
    protocols: _containers.RepeatedScalarFieldContainer[str]
    observed_addr: bytes
    protocol_version: str
    agent_version: str
    unix_ms: int
    run_id: int
    is_twin: bool
    def __init__(self, public_key: _Optional[bytes] = ..., listen_addrs: _Optional[_Iterable[bytes]] = ..., protocols: _Optional[_Iterable[str]] = ..., observed_addr: _Optional[bytes] = ..., protocol_version: _Optional[str] = ..., agent_version: _Optional[str] = ..., unix_ms: _Optional[int] = ..., run_id: _Optional[int] = ..., is_twin: bool = ...) -> None: ...

class NoiseHandshakePayload(_message.Message):
    __slots__ = ("identity_key", "identity_sig", "extensions")
    IDENTITY_KEY_FIELD_NUMBER: _ClassVar[int]
    IDENTITY_SIG_FIELD_NUMBER: _ClassVar[int]
    EXTENSIONS_FIELD_NUMBER: _ClassVar[int]
    identity_key: bytes
    identity_sig: bytes
    extensions: NoiseExtensions
    def __init__(self, identity_key: _Optional[bytes] = ..., identity_sig: _Optional[bytes] = ..., extensions: _Optional[_Union[NoiseExtensions, _Mapping]] = ...) -> None: ...

class NoiseExtensions(_message.Message):
    __slots__ = ("aes_gcm",)
    AES_GCM_FIELD_NUMBER: _ClassVar[int]
    aes_gcm: bool
    def __init__(self, aes_gcm: bool = ...) -> None: ...
