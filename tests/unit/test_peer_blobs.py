"""What content a peer knows to be on its machine."""

from formation_p2p.peer.core.events import MAX_BLOBS, BlobIndex, BlobsChanged
from formation_p2p.workload.core.blob import RAW, Cid, digest_of

A, B, C = (Cid(RAW, digest_of(name)) for name in (b"a", b"b", b"c"))


def test_a_list_is_answered_with_the_places_of_what_is_here() -> None:
    blobs = BlobIndex()
    assert blobs.places((A, B)) == ()
    blobs.changed(BlobsChanged(here=(A, C)))
    assert blobs.places((A, B, C)) == (0, 2)
    blobs.changed(BlobsChanged(here=(B,), gone=(A,)))
    blobs.changed(BlobsChanged(gone=(A,)))  # told twice
    assert blobs.places((A, B, C)) == (1, 2)
    assert blobs.places(()) == ()


def test_what_came_longest_ago_is_forgotten_first() -> None:
    blobs = BlobIndex()
    blobs.changed(BlobsChanged(here=(A, B)))
    blobs.changed(BlobsChanged(here=(A,)))
    more = tuple(Cid(RAW, digest_of(b"%d" % n)) for n in range(MAX_BLOBS - 1))
    blobs.changed(BlobsChanged(here=more))
    assert blobs.places((A, B, more[0])) == (0, 2)
