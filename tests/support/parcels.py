"""Parcels without a node."""

from formation_p2p.api.reference import Packer
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity

OWNER = Contact(Identity.from_seed(bytes(32)).peer_id, ("/ip4/127.0.0.1/tcp/4001",))


def a_packer(blobs: PrivateBlobs | None = None) -> Packer:
    return Packer(PrivateBlobs() if blobs is None else blobs, lambda: OWNER)
