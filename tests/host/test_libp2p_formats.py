"""Our peer ids, addresses and envelopes against py-libp2p's."""

from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.envelope import Envelope, unmarshal_envelope
from libp2p.peer.id import ID

from formation_p2p.core.identity import Identity, key_of_peer, peer_id_to_bytes
from formation_p2p.records.core.envelope import open_envelope, seal

SEEDS = [bytes([n]) * 32 for n in range(8)]
DOMAIN, TYPE, PAYLOAD = "formation-test", b"/formation/test/1", b"payload" * 50


def test_the_same_key_has_the_same_peer_id_and_the_same_place() -> None:
    for seed in SEEDS:
        ours, theirs = Identity.from_seed(seed), create_new_key_pair(seed)
        peer_id = ID.from_pubkey(theirs.public_key)
        assert ours.peer_id == peer_id.to_base58()
        assert peer_id_to_bytes(ours.peer_id) == peer_id.to_bytes()
        assert key_of_peer(ours.peer_id) == peer_id.xor_id
        assert ours.public_key == theirs.public_key.to_bytes()


def test_py_libp2p_opens_our_envelopes() -> None:
    alice = Identity.from_seed(SEEDS[0])
    envelope = unmarshal_envelope(seal(alice, DOMAIN, TYPE, PAYLOAD))
    envelope.validate(DOMAIN)
    assert ID.from_pubkey(envelope.public_key).to_base58() == alice.peer_id
    assert (envelope.payload_type, envelope.raw_payload) == (TYPE, PAYLOAD)


def test_we_open_envelopes_of_py_libp2p() -> None:
    theirs = create_new_key_pair(SEEDS[1])
    parts = (DOMAIN.encode(), TYPE, PAYLOAD)
    unsigned = b"\x0eformation-test" + b"\x11/formation/test/1" + b"\xde\x02" + PAYLOAD
    assert sum(map(len, parts)) + 4 == len(unsigned)
    signature = theirs.private_key.sign(unsigned)
    raw = Envelope(theirs.public_key, TYPE, PAYLOAD, signature).marshal_envelope()
    assert open_envelope(raw, DOMAIN, TYPE, 4096) == (
        ID.from_pubkey(theirs.public_key).to_base58(),
        PAYLOAD,
    )
