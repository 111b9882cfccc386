"""The Noise session on its socket: two real ends on loopback, after a real handshake."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from cryptography.exceptions import InvalidTag
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.io.exceptions import ConnectionClosedError
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.peer.id import ID
from libp2p.security.noise.transport import Transport
from noise.exceptions import NoiseInvalidMessage  # type: ignore[import-untyped]

from formation_p2p.core.units import KIB, MIB
from formation_p2p.host.net.transport.tcp import TcpStream
from formation_p2p.host.net.transport.upgrade import NoiseStream
from tests.support.stacks import run


@asynccontextmanager
async def session() -> AsyncIterator[tuple[NoiseStream, NoiseStream]]:
    """Alice, who dialled, and bob."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    here = TcpStream(
        await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]),
    )
    there = TcpStream(await listener.accept())
    await listener.aclose()
    ends: dict[bool, NoiseStream] = {}
    bob_keys = create_new_key_pair(os.urandom(32))

    async def shake(stream: TcpStream, *, dialled: bool) -> None:
        keys = create_new_key_pair(os.urandom(32)) if dialled else bob_keys
        noise = Transport(keys, noise_privkey=create_new_noise_key_pair().private_key)
        raw = RawConnection(stream, dialled)
        if dialled:
            bob = ID.from_pubkey(bob_keys.public_key)
            secured = await noise.secure_outbound(raw, bob)
        else:
            secured = await noise.secure_inbound(raw)
        ends[dialled] = NoiseStream(secured, stream)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: shake(here, dialled=True))
        nursery.start_soon(lambda: shake(there, dialled=False))
    try:
        yield ends[True], ends[False]
    finally:
        await here.close()
        await there.close()


async def flush(stream: NoiseStream) -> None:
    while not await stream.flush():
        pass


async def read_all(stream: NoiseStream, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += await stream.read()
    return data


def test_what_is_written_is_read_whole_whatever_its_size() -> None:
    async def story() -> None:
        async with session() as (alice, bob):
            for size in (1, 65_519, 65_520, 3 * MIB + 1):
                sent = os.urandom(size)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(alice.write, sent)
                    assert await read_all(bob, size) == sent

    run(story)


def test_messages_that_came_together_are_read_without_a_wait_in_between() -> None:
    async def story() -> None:
        async with session() as (alice, bob):
            assert alice.write_now(b"one ", b"two ")
            assert alice.write_now(b"three")
            await trio.sleep(0.05)
            assert await bob.read() == b"one "
            with trio.CancelScope() as scope:
                scope.cancel()  # whoever waits is cancelled
                assert [await bob.read(), await bob.read(2)] == [b"two ", b"th"]
                assert await bob.read() == b"ree"

    run(story)


def test_a_message_that_comes_byte_by_byte_is_read_whole() -> None:
    async def story() -> None:
        async with session() as (alice, bob):
            message = b"".join(alice._sealed(b"slowly"))

            async def drip() -> None:
                for n in range(len(message)):
                    await alice._tcp.write(message[n : n + 1])
                    await trio.sleep(0.001)

            async with trio.open_nursery() as nursery:
                nursery.start_soon(drip)
                assert await bob.read() == b"slowly"

    run(story)


def test_what_the_kernel_does_not_take_at_once_is_flushed_before_anything_else() -> None:
    async def story() -> None:
        async with session() as (alice, bob):
            alice._tcp._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
            sent = b""
            while alice.write_now(piece := os.urandom(4 * KIB)):
                sent += piece
            sent += piece
            with pytest.raises(ConnectionClosedError):
                alice.write_now(b"out of turn")
            async with trio.open_nursery() as nursery:
                nursery.start_soon(flush, alice)
                assert await read_all(bob, len(sent)) == sent
            # The one that was refused used up a number of the cipher: this is the end.
            assert alice.write_now(b"too late")
            with pytest.raises((InvalidTag, NoiseInvalidMessage)):
                await bob.read()

    run(story)


def test_an_altered_message_is_told_from_a_true_one() -> None:
    async def story() -> None:
        async with session() as (alice, bob):
            message = bytearray(b"".join(alice._sealed(b"pay bob 1")))
            message[-1] ^= 1
            await alice._tcp.write(bytes(message))
            with pytest.raises((InvalidTag, NoiseInvalidMessage)):
                await bob.read()

    run(story)


def test_an_empty_message_and_a_goodbye_end_it() -> None:
    async def story() -> None:
        async with session() as (alice, bob):
            assert alice.write_now(b"")
            with pytest.raises(ConnectionClosedError):
                await bob.read()
            await alice.close()
            with pytest.raises(ConnectionClosedError):
                await alice.read()
            with pytest.raises(ConnectionClosedError):
                alice.write_now(b"hello?")

    run(story)
