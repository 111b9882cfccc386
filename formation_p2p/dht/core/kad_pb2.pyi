from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("key", "value", "timeReceived")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMERECEIVED_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    timeReceived: str
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., timeReceived: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("type", "clusterLevelRaw", "key", "record", "closerPeers", "providerPeers", "query", "moreKeys", "acknowledged", "shards", "dialBack", "reached", "charter")
    class MessageType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        PUT_VALUE: _ClassVar[Message.MessageType]
        GET_VALUE: _ClassVar[Message.MessageType]
        ADD_PROVIDER: _ClassVar[Message.MessageType]
        GET_PROVIDERS: _ClassVar[Message.MessageType]
        FIND_NODE: _ClassVar[Message.MessageType]
        PING: _ClassVar[Message.MessageType]
    PUT_VALUE: Message.MessageType
    GET_VALUE: Message.MessageType
    ADD_PROVIDER: Message.MessageType
    GET_PROVIDERS: Message.MessageType
    FIND_NODE: Message.MessageType
    PING: Message.MessageType
    class ConnectionType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        NOT_CONNECTED: _ClassVar[Message.ConnectionType]
        CONNECTED: _ClassVar[Message.ConnectionType]
        CAN_CONNECT: _ClassVar[Message.ConnectionType]
        CANNOT_CONNECT: _ClassVar[Message.ConnectionType]
    NOT_CONNECTED: Message.ConnectionType
    CONNECTED: Message.ConnectionType
    CAN_CONNECT: Message.ConnectionType
    CANNOT_CONNECT: Message.ConnectionType
    class Peer(_message.Message):
        __slots__ = ("id", "addrs", "connection", "profile")
        ID_FIELD_NUMBER: _ClassVar[int]
        ADDRS_FIELD_NUMBER: _ClassVar[int]
        CONNECTION_FIELD_NUMBER: _ClassVar[int]
        PROFILE_FIELD_NUMBER: _ClassVar[int]
        id: bytes
        addrs: _containers.RepeatedScalarFieldContainer[bytes]
        connection: Message.ConnectionType
        profile: bytes
        def __init__(self, id: _Optional[bytes] = ..., addrs: _Optional[_Iterable[bytes]] = ..., connection: _Optional[_Union[Message.ConnectionType, str]] = ..., profile: _Optional[bytes] = ...) -> None: ...
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CLUSTERLEVELRAW_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    CLOSERPEERS_FIELD_NUMBER: _ClassVar[int]
    PROVIDERPEERS_FIELD_NUMBER: _ClassVar[int]
    QUERY_FIELD_NUMBER: _ClassVar[int]
    MOREKEYS_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    DIALBACK_FIELD_NUMBER: _ClassVar[int]
    REACHED_FIELD_NUMBER: _ClassVar[int]
    CHARTER_FIELD_NUMBER: _ClassVar[int]
    type: Message.MessageType
    clusterLevelRaw: int
    key: bytes
    record: Record
    closerPeers: _containers.RepeatedCompositeFieldContainer[Message.Peer]
    providerPeers: _containers.RepeatedCompositeFieldContainer[Message.Peer]
    query: ProviderQuery
    moreKeys: _containers.RepeatedScalarFieldContainer[bytes]
    acknowledged: bool
    shards: _containers.RepeatedCompositeFieldContainer[ShardCount]
    dialBack: bool
    reached: bool
    charter: int
    def __init__(self, type: _Optional[_Union[Message.MessageType, str]] = ..., clusterLevelRaw: _Optional[int] = ..., key: _Optional[bytes] = ..., record: _Optional[_Union[Record, _Mapping]] = ..., closerPeers: _Optional[_Iterable[_Union[Message.Peer, _Mapping]]] = ..., providerPeers: _Optional[_Iterable[_Union[Message.Peer, _Mapping]]] = ..., query: _Optional[_Union[ProviderQuery, _Mapping]] = ..., moreKeys: _Optional[_Iterable[bytes]] = ..., acknowledged: bool = ..., shards: _Optional[_Iterable[_Union[ShardCount, _Mapping]]] = ..., dialBack: bool = ..., reached: bool = ..., charter: _Optional[int] = ...) -> None: ...

class ProviderQuery(_message.Message):
    __slots__ = ("target", "requirements", "limit")
    TARGET_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENTS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    target: bytes
    requirements: bytes
    limit: int
    def __init__(self, target: _Optional[bytes] = ..., requirements: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class ShardCount(_message.Message):
    __slots__ = ("members", "deeper", "shallower", "depth", "settled", "beyond")
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    DEEPER_FIELD_NUMBER: _ClassVar[int]
    SHALLOWER_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    SETTLED_FIELD_NUMBER: _ClassVar[int]
    BEYOND_FIELD_NUMBER: _ClassVar[int]
    members: int
    deeper: int
    shallower: int
    depth: int
    settled: int
    beyond: int
    def __init__(self, members: _Optional[int] = ..., deeper: _Optional[int] = ..., shallower: _Optional[int] = ..., depth: _Optional[int] = ..., settled: _Optional[int] = ..., beyond: _Optional[int] = ...) -> None: ...
