"""Plain nodes of ours behind p2pd's control protocol, so that a suite for daemons can drive them.

`python -m tests.interop.daemon_node` obeys lines (`lines.py`): `spawn` starts a node, with its own
control socket on loopback, and answers the port of that and the node's number; `stop` ends one. All
are in this one process, which takes two seconds to start.
"""

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, RemoteError, Unreachable
from formation_p2p.core.identity import peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.dht.core import messages as kad
from formation_p2p.machine.clock import moment
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.records.core.addresses import address_bytes, read_addresses
from tests.interop.daemon_messages import (
    Dht,
    Fields,
    Part,
    Request,
    contact_in,
    fields_of,
    one_bytes,
    one_integer,
    peer_info,
)
from tests.interop.lines import obey
from tests.interop.plain_node import KAD_PROTOCOL, LOOPBACK, PlainNode
from tests.interop.plain_records import ValueRecord
from tests.support.protobuf import integer, octets, varint

CHUNK_BYTES: Final = 65_536


class Control:
    """One connection of a client: messages, until a stream takes it over."""

    def __init__(self, socket: trio.SocketStream) -> None:
        self.socket = socket

    async def messages(self) -> AsyncIterator[Fields]:
        while True:
            length = shift = 0
            while True:
                byte = await self.socket.receive_some(1)
                if not byte:
                    return
                length |= (byte[0] & 0x7F) << shift
                shift += 7
                if byte[0] < 0x80:
                    break
            message = b""
            while len(message) < length:
                more = await self.socket.receive_some(length - len(message))
                if not more:
                    return
                message += more
            yield fields_of(message)

    async def write(self, message: bytes) -> None:
        await self.socket.send_all(varint(len(message)) + message)

    async def done(self, fields: bytes = b"") -> None:
        await self.write(integer(1, 0) + fields)

    async def carry(self, stream: MuxedStream) -> None:
        """Bytes, both ways, until both sides have finished."""

        async def outward() -> None:
            async for data in self.socket:
                await stream.write(data)
            await stream.close()

        async def inward() -> None:
            with suppress(IOException):  # the end of the stream
                while True:
                    await self.socket.send_all(await stream.read(CHUNK_BYTES))
            await self.socket.send_eof()

        with suppress(trio.BrokenResourceError, IOException):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(outward)
                nursery.start_soon(inward)


class DaemonNode(PlainNode):
    async def serve(self, *, task_status: Any) -> None:
        """Until it is cancelled. Tells the port of its control socket once it is there."""
        async with self.running(), trio.open_nursery() as nursery:
            [listener] = await nursery.start(
                partial(trio.serve_tcp, self._obey, 0, host="127.0.0.1")
            )
            task_status.started(listener.socket.getsockname()[1])
            await trio.sleep_forever()

    async def _obey(self, socket: trio.SocketStream) -> None:
        control = Control(socket)
        try:
            async for request in control.messages():
                try:
                    await self._answer(control, request)
                except (FormationError, KeyError, ValueError) as error:
                    logging.info("refused: %r", error)
                    why = octets(2, octets(1, repr(error).encode()))
                    await control.write(integer(1, 1) + why)
        except trio.BrokenResourceError:
            logging.info("a client is gone")

    async def _answer(self, control: Control, request: Fields) -> None:
        match one_integer(request, 1):
            case Request.IDENTIFY:
                me = Contact(self._identity.peer_id, self._stack.announced)
                await control.done(octets(4, peer_info(me)))
            case Request.CONNECT:
                await self._dial(contact_in(request[2][0]))
                await control.done()
            case Request.LIST_PEERS:
                peers = {each.peer: each.contact for each in self._stack.swarm.all()}
                await control.done(b"".join(octets(6, peer_info(x)) for x in peers.values()))
            case Request.STREAM_OPEN:
                await self._open(control, fields_of(one_bytes(request, 3)))
            case Request.STREAM_HANDLER:
                self._register(fields_of(one_bytes(request, 4)))
                await control.done()
            case Request.DHT:
                await self._ask_dht(control, fields_of(one_bytes(request, 5)))
            case kind:
                raise ValueError(f"requests of the kind {kind} are not served")

    async def _dial(self, to: Contact) -> None:
        connection = await self._stack.swarm.dialler.dial(to)
        await connection.wait_identified()
        if KAD_PROTOCOL in connection.protocols:
            await self._searched(self._dht.bootstrap([to], moment(), "test"))

    # -- streams -----------------------------------------------------------------------------

    async def _open(self, control: Control, asked: Fields) -> None:
        peer_id = peer_id_from_bytes(one_bytes(asked, 1))
        protocol = one_bytes(asked, 2).decode()
        connection = await self._stack.swarm.dialler.dial(Contact(peer_id))
        stream = await connection.open(protocol)
        await control.done(octets(3, _stream_info(connection, protocol)))
        await control.carry(stream)

    def _register(self, asked: Fields) -> None:
        """From now on streams of these protocols go to the client's own address."""
        [address] = read_addresses([one_bytes(asked, 1)])
        for protocol in asked[2]:
            assert isinstance(protocol, bytes)
            handler = partial(self._hand_over, address, protocol.decode())
            self._stack.served.by_protocol[protocol.decode()] = handler

    async def _hand_over(
        self, address: str, protocol: str, stream: MuxedStream, connection: Connection
    ) -> None:
        _, _, host, _, port = address.split("/")
        control = Control(await trio.open_tcp_stream(host, int(port)))
        async with control.socket:
            await control.write(_stream_info(connection, protocol))
            await control.carry(stream)

    # -- the DHT -----------------------------------------------------------------------------

    async def _ask_dht(self, control: Control, asked: Fields) -> None:
        match one_integer(asked, 1):
            case Dht.FIND_PEER:
                found = await self._find_peer(one_bytes(asked, 2))
                await control.done(_dht(octets(2, peer_info(found))))
            case Dht.PROVIDE:
                await self._provide({"name": _multihash(one_bytes(asked, 3)).hex()})
                await control.done()
            case Dht.FIND_PROVIDERS:
                name = kad.GetProviders(_multihash(one_bytes(asked, 3)), None)
                searched = await self._searched(self._dht.search(name, moment(), "test"))
                found_at = [each for each in searched.found if isinstance(each, Contact)]
                await self._several(control, [octets(2, peer_info(each)) for each in found_at])
            case Dht.CLOSEST:
                closest = await self._closest_to(one_bytes(asked, 4))
                ids = [peer_id_to_bytes(each.peer_id) for each in closest]
                await self._several(control, [octets(3, each) for each in ids])
            case Dht.PUT_VALUE:
                write = kad.PutValue(one_bytes(asked, 4), one_bytes(asked, 5))
                if not await self._write(write, {}):
                    raise Unreachable("no peer has taken the value")
                await control.done()
            case Dht.GET_VALUE:
                search = self._dht.search(kad.GetValue(one_bytes(asked, 4)), moment(), "test")
                records = (await self._searched(search)).found
                values = [each.value for each in records if isinstance(each, ValueRecord)]
                if not values:
                    raise RemoteError("no peer has the value")
                await control.done(_dht(octets(3, values[0])))
            case kind:
                raise ValueError(f"requests of the DHT of the kind {kind} are not served")

    async def _several(self, control: Control, values: Sequence[bytes]) -> None:
        await control.done(octets(5, integer(1, Part.BEGIN)))
        for value in values:
            await control.write(integer(1, Part.VALUE) + value)
        await control.write(integer(1, Part.END))

    async def _find_peer(self, raw: bytes) -> Contact:
        peer_id = peer_id_from_bytes(raw)
        connection = self._stack.swarm.connection_to(peer_id)
        if connection is not None:
            await connection.wait_identified()
            return connection.contact
        for contact in await self._closest_to(raw):
            if contact.peer_id == peer_id:
                return contact
        raise Unreachable(f"{peer_id} is not found")


def _dht(value: bytes) -> bytes:
    return octets(5, integer(1, Part.VALUE) + value)


def _stream_info(connection: Connection, protocol: str) -> bytes:
    address = next(iter(connection.contact.addresses), LOOPBACK)
    peer = octets(1, peer_id_to_bytes(connection.peer))
    return peer + octets(2, address_bytes(address)) + octets(3, protocol.encode())


def _multihash(cid: bytes) -> bytes:
    """Of a CID of version 0, which is one, or 1, with a codec of one byte."""
    return cid if cid[:1] == b"\x12" else cid[2:]


async def main() -> None:
    nodes: list[trio.CancelScope] = []
    async with trio.open_nursery() as nursery:

        async def serve(node: DaemonNode, *, task_status: Any) -> None:
            with trio.CancelScope() as scope:
                nodes.append(scope)
                await node.serve(task_status=task_status)

        async def spawn(asked: dict[str, Any]) -> dict[str, int]:
            port = await nursery.start(serve, DaemonNode([LOOPBACK] if asked["listens"] else []))
            return {"control": port, "number": len(nodes) - 1}

        async def stop(asked: dict[str, Any]) -> None:
            nodes[asked["number"]].cancel()

        await obey({"spawn": spawn, "stop": stop}, {})
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    trio.run(main)
