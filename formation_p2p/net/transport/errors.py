"""What fails below the protocols: a dial, a connection, one stream of it.

The names are py-libp2p's, whose interfaces this stack had first. Those that speak a protocol turn
these into `Unreachable` (core/errors.py).
"""

from __future__ import annotations


class TransportError(Exception):
    """A connection or a stream fails, or cannot be had."""


class SwarmException(TransportError):
    """A connection cannot be made: the dial or one of its handshakes fails."""


class MuxedConnUnavailable(TransportError):
    """The connection is over: no stream can be opened or accepted."""


class IOException(TransportError):
    """A read or a write fails."""


class ConnectionClosedError(IOException):
    """The connection under all its streams has ended."""


class StreamEOF(IOException, EOFError):
    """The peer has finished the stream, and all that it sent is read."""


class StreamReset(IOException):
    """The stream, or its connection, was ended by one of both sides."""


class StreamClosed(IOException):
    """This side has finished the stream, and would write more."""
