"""The Noise session on its socket: two real ends on loopback, after a real handshake."""

import itertools
import json
import math
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM, ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from google.protobuf.message import DecodeError
from libp2p.crypto.rsa import create_new_key_pair as create_new_rsa_key_pair
from libp2p.peer.id import ID

from formation_p2p.core.identity import Identity, PeerId, peer_id_from_bytes
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.errors import ConnectionClosedError, SwarmException
from formation_p2p.net.transport.libp2p_pb2 import NoiseHandshakePayload
from formation_p2p.net.transport.noise import Cipher, Handshake, NoiseKeys, handshake
from formation_p2p.net.transport.tcp import TcpStream
from formation_p2p.net.transport.upgrade import NoiseStream
from formation_p2p.records.core.envelope_pb2 import RSA, PublicKey
from tests.support.waiting import in_trio


async def told(keys: NoiseKeys) -> PeerId | None:
    """Who one that dials with `keys` is, to bob. None where he refuses it."""
    bob = Identity.from_seed(bytes([2]) * 32)
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    here = TcpStream(await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]))
    there = TcpStream(await listener.accept())
    await listener.aclose()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(handshake, here, keys, bob.peer_id)
        try:
            return (await handshake(there, NoiseKeys.of(bob), None)).peer
        except (SwarmException, DecodeError, ValueError):
            return None
        finally:
            await here.close()
            await there.close()


@asynccontextmanager
async def session(
    alices_aes: bool | None = None, bobs_aes: bool | None = None
) -> AsyncIterator[tuple[NoiseStream, NoiseStream]]:
    """Alice, who dialled, and bob."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    here = TcpStream(await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]))
    there = TcpStream(await listener.accept())
    await listener.aclose()
    ends: dict[bool, NoiseStream] = {}
    alice, bob = (Identity.from_seed(os.urandom(32)) for _ in range(2))

    async def shake(stream: TcpStream, *, dialled: bool) -> None:
        me, aes = (alice, alices_aes) if dialled else (bob, bobs_aes)
        keys = NoiseKeys.signed(me.libp2p_public_key, me.sign, aes=aes)
        secured = await handshake(stream, keys, bob.peer_id if dialled else None)
        assert secured.peer == (bob if dialled else alice).peer_id
        ends[dialled] = NoiseStream(secured, stream, is_initiator=dialled)

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


@in_trio
async def test_what_is_written_is_read_whole_whatever_its_size() -> None:
    async with session() as (alice, bob):
        for size in (1, 65_519, 65_520, 3 * MIB + 1):
            sent = os.urandom(size)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(alice.write, sent)
                assert await read_all(bob, size) == sent


@pytest.mark.parametrize("alices", [False, True])
@pytest.mark.parametrize("bobs", [False, True])
@in_trio
async def test_peers_understand_each_other_whether_aes_is_faster_at_one_or_the_other(
    alices: bool, bobs: bool
) -> None:
    async with session(alices, bobs) as (alice, bob):
        for writes, reads in ((alice, bob), (bob, alice)):
            sent = os.urandom(3 * KIB)
            await writes.write(sent[:KIB])
            await writes.write(sent[KIB:])
            assert await read_all(reads, len(sent)) == sent


# Of the test vectors that implementations of Noise share, Cacophony's and Snow's:
# https://github.com/noiseprotocol/noise_wiki/wiki/Test-vectors
VECTORS = json.loads(Path(__file__).with_name("noise_vectors.json").read_text())


def sides(vector: dict[str, Any]) -> tuple[Handshake, Handshake]:
    """Of alice, who dials, and of bob."""

    def side(who: str) -> Handshake:
        static, ephemeral, prologue = (
            bytes.fromhex(vector[f"{who}_{name}"]) for name in ("static", "ephemeral", "prologue")
        )
        return Handshake(
            X25519PrivateKey.from_private_bytes(static),
            dials=who == "init",
            ephemeral=X25519PrivateKey.from_private_bytes(ephemeral),
            prologue=prologue,
        )

    return side("init"), side("resp")


@pytest.mark.parametrize("vector", VECTORS, ids=["cacophony", "snow"])
def test_a_handshake_is_that_of_the_test_vectors(vector: dict[str, Any]) -> None:
    alice, bob = sides(vector)
    said = [
        (bytes.fromhex(each["payload"]), bytes.fromhex(each["ciphertext"]))
        for each in vector["messages"]
    ]
    for number, (payload, message) in enumerate(said[:3]):
        writer, reader = (bob, alice) if number % 2 else (alice, bob)
        assert writer.write(payload) == message
        assert reader.read(message) == payload
    assert alice.hash == bob.hash
    assert vector.get("handshake_hash", alice.hash.hex()) == alice.hash.hex()
    for one, other in ((alice, "resp"), (bob, "init")):
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(vector[f"{other}_static"]))
        assert one.their_static == key.public_key().public_bytes_raw()
    (alice_seals, alice_opens), (bob_seals, bob_opens) = alice.ciphers(), bob.ciphers()
    for number, (payload, message) in enumerate(said[3:]):
        # In turns as before, so that bob goes on.
        seals, opens = (alice_seals, bob_opens) if number % 2 else (bob_seals, alice_opens)
        assert seals.seal(payload) == message
        assert opens.open(message) == payload


def shake_hands(alice: Handshake, bob: Handshake, number: int, at: int) -> None:
    """With one bit of a message altered."""
    for turn in range(3):
        writer, reader = (bob, alice) if turn % 2 else (alice, bob)
        message = bytearray(writer.write(b"payload"))
        if turn == number:
            message[at] ^= 1
        reader.read(bytes(message))


@pytest.mark.parametrize(
    ("number", "at"), [(0, 0), (0, 32), (1, 0), (1, 32), (1, 79), (1, -1), (2, 0), (2, -1)]
)
def test_a_handshake_with_an_altered_message_does_not_end(number: int, at: int) -> None:
    alice, bob = sides(VECTORS[0])
    with pytest.raises(InvalidTag):
        shake_hands(alice, bob, number, at)


@pytest.mark.parametrize("size", [0, 31, 32, 79, 80, 95])
def test_a_message_that_is_cut_short_is_refused(size: int) -> None:
    alice, bob = sides(VECTORS[0])
    if size < 32:
        with pytest.raises(ValueError, match="32"):
            bob.read(bytes(size))
        return
    bob.read(alice.write())
    with pytest.raises(InvalidTag):
        alice.read(bob.write()[:size])


def test_a_key_that_makes_the_secret_known_to_all_is_refused() -> None:
    _, bob = sides(VECTORS[0])
    bob.read(bytes(32))  # a point of low order: each secret with it is zero
    with pytest.raises(ValueError):  # noqa: PT011  # as `cryptography` has it
        bob.write()


@pytest.mark.parametrize("aes", [False, True])
def test_a_message_is_sealed_as_the_noise_specification_says(aes: bool) -> None:
    key = os.urandom(32)
    cipher = Cipher(key, aes=aes)
    for number in range(3):
        sealed = cipher.seal(b"a message")
        if aes:
            nonce = bytes(4) + number.to_bytes(8, "big")
            assert AESGCM(key).decrypt(nonce, sealed, b"") == b"a message"
        else:
            nonce = bytes(4) + number.to_bytes(8, "little")
            assert ChaCha20Poly1305(key).decrypt(nonce, sealed, b"") == b"a message"


@in_trio
async def test_messages_that_came_together_are_read_without_a_wait_in_between() -> None:
    async with session() as (alice, bob):
        assert alice.write_now(b"one ", b"two ")
        assert alice.write_now(b"three")
        await trio.sleep(0.05)
        assert await bob.read() == b"one "
        with trio.CancelScope() as scope:
            scope.cancel()  # whoever waits is cancelled
            assert [await bob.read(), await bob.read(2)] == [b"two ", b"th"]
            assert await bob.read() == b"ree"


@in_trio
async def test_a_message_that_comes_byte_by_byte_is_read_whole() -> None:
    async with session() as (alice, bob):
        message = b"".join(alice._sealed(b"slowly"))

        async def drip() -> None:
            for n in range(len(message)):
                await alice._raw.write(message[n : n + 1])
                await trio.sleep(0.001)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(drip)
            assert await bob.read() == b"slowly"


@in_trio
async def test_what_the_kernel_does_not_take_at_once_is_flushed_before_anything_else() -> None:
    async with session() as (alice, bob):
        assert isinstance(alice._raw, TcpStream)
        alice._raw._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * KIB)
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
        with pytest.raises(InvalidTag):
            await bob.read()


@in_trio
async def test_sessions_that_write_much_at_the_same_time_do_not_share_its_room() -> None:
    """Nor those that read it: each has a room of its own until all of it is gone."""
    async with session() as (alice, bob), session() as (carol, dave):
        sent = {bob: b"", dave: b""}

        async def write(writer: NoiseStream, reader: NoiseStream) -> None:
            for _ in range(15):  # more than the kernel holds
                messages = [os.urandom(60_000) for _ in range(10)]
                sent[reader] += b"".join(messages)
                if not writer.write_now(*messages):
                    await flush(writer)

        read = {}

        async def take(reader: NoiseStream) -> None:
            read[reader] = await read_all(reader, 15 * 10 * 60_000)

        async with trio.open_nursery() as nursery:
            for writer, reader in ((alice, bob), (carol, dave)):
                nursery.start_soon(write, writer, reader)
                nursery.start_soon(take, reader)
        assert read == sent


@pytest.mark.parametrize("in_place", [False, True])
@in_trio
async def test_an_altered_message_is_told_from_a_true_one(in_place: bool) -> None:
    async with session() as (alice, bob):
        message = bytearray(b"".join(alice._sealed(b"pay bob 1")))
        message[-1] ^= 1
        await alice._raw.write(bytes(message))
        await bob.arrival(0)
        with pytest.raises(InvalidTag):
            bob.open_into(memoryview(bytearray(9))) if in_place else await bob.read()


@in_trio
async def test_messages_that_fit_are_opened_where_they_are_to_lie() -> None:
    async with session() as (alice, bob):
        into = memoryview(bytearray(10))
        assert bob.open_into(into) == 0
        assert alice.write_now(b"one ", b"two ", b"three")
        while bob.open_into(into) == 0:
            await bob.arrival(0)
        assert bytes(into) == b"one two \0\0"
        assert bob.open() == b"three"
        assert bob.open() == b""
        assert alice.write_now(b"")
        await bob.arrival(0)
        with pytest.raises(ConnectionClosedError):
            bob.open_into(into)


@in_trio
async def test_an_empty_message_and_a_goodbye_end_it() -> None:
    async with session() as (alice, bob):
        assert alice.write_now(b"")
        with pytest.raises(ConnectionClosedError):
            await bob.read()
        await alice.close()
        with pytest.raises(ConnectionClosedError):
            await alice.read()
        with pytest.raises(ConnectionClosedError):
            alice.write_now(b"hello?")


@in_trio
async def test_the_rsa_key_of_an_older_peer_proves_whose_it_is() -> None:
    theirs = create_new_rsa_key_pair()
    keys = NoiseKeys.signed(theirs.public_key.serialize(), theirs.private_key.sign)
    assert await told(keys) == ID.from_pubkey(theirs.public_key).to_base58()


@in_trio
async def test_an_ecdsa_key_proves_whose_it_is() -> None:
    """py-libp2p has none; the format is that of the libp2p peer-ids specification."""
    theirs = ec.generate_private_key(ec.SECP256R1())
    der = theirs.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public_key = b"\x08\x03\x12" + bytes([len(der)]) + der
    keys = NoiseKeys.signed(public_key, lambda said: theirs.sign(said, ec.ECDSA(SHA256())))
    assert await told(keys) == peer_id_from_bytes(b"\x12\x20" + sha256(public_key).digest())


def _rsa_with_exponent(least: int) -> NoiseKeys:
    """A true key and signature: the first exponent from `least` on that there is a key for."""
    made = rsa.generate_private_key(65_537, 2048).private_numbers()
    phi = (made.p - 1) * (made.q - 1)
    e = next(each for each in itertools.count(least | 1, 2) if math.gcd(each, phi) == 1)
    d = pow(e, -1, phi)
    public = rsa.RSAPublicNumbers(e, made.public_numbers.n)
    parts = (d % (made.p - 1), d % (made.q - 1), made.iqmp)
    theirs = rsa.RSAPrivateNumbers(made.p, made.q, d, *parts, public).private_key()
    der = theirs.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    public_key = PublicKey(Type=RSA, Data=der).SerializeToString()
    return NoiseKeys.signed(public_key, lambda s: theirs.sign(s, padding.PKCS1v15(), SHA256()))


@in_trio
async def test_an_rsa_key_whose_exponent_makes_checking_slow_is_refused() -> None:
    assert await told(_rsa_with_exponent(2**30)) is not None
    assert await told(_rsa_with_exponent(2**31)) is None


def _weak_rsa() -> NoiseKeys:
    theirs = create_new_rsa_key_pair(bits=1024)
    return NoiseKeys.signed(theirs.public_key.serialize(), theirs.private_key.sign)


def _mallory(**said: bytes) -> NoiseKeys:
    """Keys with a payload of which a part is not what it should be."""
    true = NoiseKeys.of(Identity.from_seed(os.urandom(32)))
    payload = NoiseHandshakePayload.FromString(true.payload)
    for name, value in said.items():
        setattr(payload, name, value)
    return NoiseKeys(true.static, payload.SerializeToString())


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param(_mallory(identity_sig=bytes(64)), id="another signature"),
        pytest.param(_mallory(identity_sig=b""), id="no signature"),
        pytest.param(
            _mallory(identity_key=Identity.from_seed(bytes(32)).libp2p_public_key),
            id="another's key",
        ),
        pytest.param(_mallory(identity_key=b"\x08\x01\x12\x03key"), id="a short key"),
        pytest.param(_mallory(identity_key=b"\x08\x00\x12\x03key"), id="no RSA key"),
        pytest.param(_mallory(identity_key=b"\x08\x09\x12\x03key"), id="a key of no kind"),
        pytest.param(_mallory(identity_key=b""), id="no key"),
        pytest.param(NoiseKeys(X25519PrivateKey.generate(), b""), id="no payload"),
        pytest.param(NoiseKeys(X25519PrivateKey.generate(), b"\xff" * 40), id="no protobuf"),
    ],
)
@in_trio
async def test_a_peer_that_does_not_prove_its_key_is_refused(keys: NoiseKeys) -> None:
    assert await told(keys) is None


@in_trio
async def test_an_rsa_key_of_1024_bits_is_refused() -> None:
    assert await told(_weak_rsa()) is None
