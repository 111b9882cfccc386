"""The Noise session on its socket: two real ends on loopback, after a real handshake."""

from __future__ import annotations

import itertools
import math
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
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


# Noise_XX_25519_ChaChaPoly_SHA256, of the test vectors that the implementations of Noise share
# (https://github.com/noiseprotocol/noise_wiki/wiki/Test-vectors): those of Cacophony, then of Snow.
# The keys of alice and of bob, each with the one for this handshake; then what is said, in turns.
VECTORS = [
    (
        "4a6f686e2047616c74",
        "e61ef9919cde45dd5f82166404bd08e38bceb5dfdfded0a34c8df7ed542214d1",
        "893e28b9dc6ca8d611ab664754b8ceb7bac5117349a4439a6b0569da977c464a",
        "4a3acbfdb163dec651dfa3194dece676d437029c62a408b4c5ea9114246e4893",
        "bbdb4cdbd309f1a1f2e1456967fe288cadd6f712d65dc7b7793d5e63da6b375b",
        "c8e5f64e846193be2a834104c2a009868d6c9f3bd3c186299888b488b2f1f58e",
        (
            "4c756477696720766f6e204d69736573",
            "ca35def5ae56cec33dc2036731ab14896bc4c75dbb07a61f879f8e3afa4c7944"
            "4c756477696720766f6e204d69736573",
        ),
        (
            "4d757272617920526f746862617264",
            "95ebc60d2b1fa672c1f46a8aa265ef51bfe38e7ccb39ec5be34069f144808843"
            "81cbad1f276e038c48378ffce2b65285e08d6b68aaa3629a5a8639392490e5b9"
            "bd5269c2f1e4f488ed8831161f19b7815528f8982ffe09be9b5c412f8a0db50f"
            "8814c7194e83f23dbd8d162c9326ad",
        ),
        (
            "462e20412e20486179656b",
            "c7195ffacac1307ff99046f219750fc47693e23c3cb08b89c2af808b444850a8"
            "0ae475b9df0f169ae80a89be0865b57f58c9fea0d4ec82a286427402f113e4b6"
            "ae769a1d95941d49b25030",
        ),
        (
            "4361726c204d656e676572",
            "96763ed773f8e47bb3712f0e29b3060ffc956ffc146cee53d5e1df",
        ),
        (
            "4a65616e2d426170746973746520536179",
            "3e40f15f6f3a46ae446b253bf8b1d9ffb6ed9b174d272328ff91a7e2e5c79c07f5",
        ),
        (
            "457567656e2042f6686d20766f6e2042617765726b",
            "eb3f3515110702e047a6c9da4478b6ead94873c11c0f2d710ddb3f09fce024b3a58502ae3f",
        ),
    ),
    (
        "5468657265206973206e6f20726967687420616e642077726f6e672e20546865"
        "72652773206f6e6c792066756e20616e6420626f72696e672e",
        "7dec208517a3b81a2861d7a71266d5d6dc944c5a8816634a86fe63198a0148ee",
        "a32daf21e93c0131495ce1d903181fde81cc46937daaeb990bae7c992709421e",
        "4d0aed5098e3b4ef20357e9f686ce66204c792b358da2e475017d6c485304881",
        "4eece0f195d026db035ff987597c429d3ad3bcc2944df37d649528951b2a27c5",
        "",
        (
            "d03c489139e645d0711a3c9e810d776b46a84912463fafa87b884eebf242dc34",
            "f9fa868ba97ab8a2686deccfaad5a484ee10a5bb85e3d1dce015a84797f92818"
            "d03c489139e645d0711a3c9e810d776b46a84912463fafa87b884eebf242dc34",
        ),
        (
            "d8190a92f7dc0c93dbea9118ba8055751fb7c6590c416ffbd419964132b99a85",
            "8c4e6fdb7d09d501a86f7eca5c234522751706ed409182c05cdf5f827d4dae47"
            "b81c6c5f43b025692c24391eefee725c17d8cb0fbe3e4abb8aedf42c4fd2592d"
            "4ea48ac08989d6ae8b4adae08b2c34087c808c7aa55a63c02b0fab9e93061233"
            "6bd43eaea04d3c670a0a146691aa9cc9d357872320dc735dbc48580cffb553db",
        ),
        (
            "77891b19dcb92ef7c055b672c4a5aa7fdf1c84146b8b303459022729473ce254",
            "933ca6b5ed60df3df66121f0ab49a09e49efa45c613a86a3cecbf4c535cef2f8"
            "3f72b42837b18e3572f2fdc2b74c331e2368a545cef54bdca081678ab0e9dd53"
            "48122459e0c034c851984d88ce610963d43cde6cfe73a67fbd5a63e8bfca96d0",
        ),
        (
            "d7efdf988072881941db045a42882433817555128fbf5663e56081712ec7d212",
            "54ef0ff0629e1aaa7685a2806ab111cba76b52331f2642276736f415868eacb6"
            "9ab2577f3bda0cbf72f879685f6ed25f",
        ),
        (
            "dd7bf01a588bafb52c6cfba952e5d8fe35cc2b3f92b4730ae2474615157345ce",
            "356be70f110306d5c699bb834bb9d58d909e325924dfbec972e406e6f294dc63"
            "e1daebefe8a62a334facc8048ab4ad66",
        ),
    ),
]


def side(static: str, ephemeral: str, *, dials: bool, prologue: str = "") -> Handshake:
    keys = (X25519PrivateKey.from_private_bytes(bytes.fromhex(key)) for key in (static, ephemeral))
    first, second = keys
    of = bytes.fromhex(prologue)
    return Handshake(first, dials=dials, ephemeral=second, prologue=of)


@pytest.mark.parametrize("vector", VECTORS, ids=["cacophony", "snow"])
def test_a_handshake_is_that_of_the_test_vectors(vector: tuple[Any, ...]) -> None:
    prologue, alices, alices_new, bobs, bobs_new, said, *messages = vector
    alice = side(alices, alices_new, dials=True, prologue=prologue)
    bob = side(bobs, bobs_new, dials=False, prologue=prologue)
    pairs = [(bytes.fromhex(payload), bytes.fromhex(message)) for payload, message in messages]
    for number, (payload, message) in enumerate(pairs[:3]):
        writer, reader = (bob, alice) if number % 2 else (alice, bob)
        assert writer.write(payload) == message
        assert reader.read(message) == payload
    assert alice.hash == bob.hash
    assert said in ("", alice.hash.hex())
    for one, other in ((alice, bobs), (bob, alices)):
        key = X25519PrivateKey.from_private_bytes(bytes.fromhex(other))
        assert one.their_static == key.public_key().public_bytes_raw()
    (alice_seals, alice_opens), (bob_seals, bob_opens) = alice.ciphers(), bob.ciphers()
    for number, (payload, message) in enumerate(pairs[3:]):
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
    _, alices, alices_new, bobs, bobs_new, *_ = VECTORS[0]
    alice = side(str(alices), str(alices_new), dials=True)
    bob = side(str(bobs), str(bobs_new), dials=False)
    with pytest.raises(InvalidTag):
        shake_hands(alice, bob, number, at)


@pytest.mark.parametrize("size", [0, 31, 32, 79, 80, 95])
def test_a_message_that_is_cut_short_is_refused(size: int) -> None:
    _, alices, alices_new, bobs, bobs_new, *_ = VECTORS[0]
    alice = side(str(alices), str(alices_new), dials=True)
    bob = side(str(bobs), str(bobs_new), dials=False)
    if size < 32:
        with pytest.raises(ValueError, match="32"):
            bob.read(bytes(size))
        return
    bob.read(alice.write())
    with pytest.raises(InvalidTag):
        alice.read(bob.write()[:size])


def test_a_key_that_makes_the_secret_known_to_all_is_refused() -> None:
    _, _, _, bobs, bobs_new, *_ = VECTORS[0]
    bob = side(str(bobs), str(bobs_new), dials=False)
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
