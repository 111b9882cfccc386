"""Connections are made from the port that a node listens on, and no other process takes it."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from formation_p2p.core.errors import LocalError
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import SwarmException
from formation_p2p.net.transport.own_port import OwnPort
from formation_p2p.net.transport.tcp import bind, dial_tcp
from tests.support.loopback import HOST, LOOPBACK, free_port
from tests.support.waiting import in_trio

ANYWHERE = "/ip4/0.0.0.0/tcp/0"


@asynccontextmanager
async def listening(where: str = ANYWHERE) -> AsyncIterator[tuple[OwnPort, int]]:
    own_port = OwnPort()
    with await bind(TcpAddress.parse(where), own_port) as listener:
        yield own_port, listener.getsockname()[1]
    own_port.close()


@asynccontextmanager
async def peer() -> AsyncIterator[tuple[TcpAddress, trio.socket.SocketType]]:
    (listener,) = await trio.open_tcp_listeners(0, host=HOST)
    async with listener:
        port = listener.socket.getsockname()[1]
        yield TcpAddress("ip4", HOST, port), listener.socket


async def seen_from(listener: trio.socket.SocketType) -> int:
    """The port that the next connection comes from."""
    connection, address = await listener.accept()
    connection.close()
    port: int = address[1]
    return port


@in_trio
async def test_a_peer_sees_connections_come_from_the_port_that_is_listened_on() -> None:
    async with listening() as (own_port, port), peer() as (there, theirs):
        dialled = await dial_tcp(there, own_port)
        assert dialled.from_own_port
        accepted, (_, seen) = await theirs.accept()
        assert seen == port
        # One more to the same peer has to come from elsewhere.
        again = await dial_tcp(there, own_port)
        assert not again.from_own_port
        assert await seen_from(theirs) != port
        accepted.close()
        await dialled.close()
        await again.close()


@in_trio
async def test_no_other_socket_is_bound_to_the_port_whatever_is_dialled_from_it() -> None:
    async with listening() as (own_port, port), peer() as (there, _):
        dialled = await dial_tcp(there, own_port)
        for host in ("0.0.0.0", HOST):
            with pytest.raises(LocalError, match="cannot listen"):
                await bind(TcpAddress("ip4", host, port), OwnPort())
            with socket.socket() as other:
                other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with pytest.raises(OSError, match="in use"):
                    other.bind((host, port))
        await dialled.close()


@in_trio
async def test_a_node_that_starts_again_listens_while_its_last_connections_close() -> None:
    async with peer() as (there, theirs):
        async with listening() as (own_port, port):
            dialled = await dial_tcp(there, own_port)
            accepted, _ = await theirs.accept()
        async with listening(f"/ip4/0.0.0.0/tcp/{port}"):  # while it is there
            await dialled.close()
        async with listening(f"/ip4/0.0.0.0/tcp/{port}"):  # while it waits for the other end
            accepted.close()


@in_trio
async def test_a_node_that_does_not_listen_dials_all_peers_from_one_port() -> None:
    own_port = OwnPort()
    ports = []
    for _ in range(3):
        async with peer() as (there, theirs):
            dialled = await dial_tcp(there, own_port)
            ports.append(await seen_from(theirs))
            await dialled.close()
    own_port.close()
    assert len(set(ports)) == 1


@in_trio
async def test_what_listens_on_loopback_alone_dials_others_from_a_port_that_it_keeps() -> None:
    async with listening(LOOPBACK) as (own_port, port), peer() as (there, theirs):
        dialled = await dial_tcp(there, own_port)
        assert await seen_from(theirs) != port
        assert dialled.from_own_port
        await dialled.close()


@in_trio
async def test_ipv6_has_a_port_of_its_own() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="::1")
    async with listener, listening() as (own_port, port):
        there = TcpAddress("ip6", "::1", listener.socket.getsockname()[1])
        dialled = await dial_tcp(there, own_port)
        assert await seen_from(listener.socket) != port
        assert dialled.from_own_port
        await dialled.close()


@in_trio
async def test_a_dial_that_is_refused_is_not_tried_from_elsewhere() -> None:
    async with listening() as (own_port, _):
        with pytest.raises(SwarmException, match="refused"):
            await dial_tcp(TcpAddress("ip4", HOST, free_port()), own_port)
