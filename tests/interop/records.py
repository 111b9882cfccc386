"""Names and records for the tests, a new one at each call."""

import os

from formation_p2p.core.identity import Identity, peer_id_to_bytes


def content() -> bytes:
    """What a provider record stands under: a SHA-256 multihash, the one kind all four take."""
    return b"\x12\x20" + os.urandom(32)


def public_key() -> tuple[bytes, bytes]:
    """A name `/pk/<peer id>` and the only value for it."""
    identity = Identity.from_seed(os.urandom(32))
    return b"/pk/" + peer_id_to_bytes(identity.peer_id), b"\x08\x01\x12\x20" + identity.public_key


def text() -> tuple[bytes, bytes]:
    """A name under `/text/`, which all but go's daemon were told of."""
    return f"/text/{os.urandom(8).hex()}".encode(), os.urandom(8).hex().encode()


# py-libp2p 0.8.1 reads names as UTF-8, which peer ids are not: its `/pk/` has them in hexadecimal,
# unlike the specification's. go's daemon has `/pk/` and `/ipns/` alone.
VALUE_OF = {"go": public_key, "js": public_key, "py": text, "hosted": text}
