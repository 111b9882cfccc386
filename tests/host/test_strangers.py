"""What peers without a lease hold together: each its own, and the rest out of a pool."""

from formation_p2p.net.transport.strangers import Pool, Share


def test_a_share_draws_on_the_pool_only_past_its_own_and_gives_that_back_first() -> None:
    pool = Pool(100)
    alice = Share(pool, own=10)
    alice.take(10)
    assert pool.free == 100
    alice.take(30)
    assert pool.free == 70
    alice.give_back(25)
    assert pool.free == 95
    alice.give_back(15)
    assert pool.free == 100


def test_what_does_not_fit_any_more_still_fits_into_the_own_part_of_another() -> None:
    pool = Pool(100)
    mallory, bob = Share(pool, own=10), Share(pool, own=10)
    mallory.take(110)
    assert not mallory.fits(1)
    assert bob.fits(10)
    assert not bob.fits(11)


def test_only_those_are_over_who_hold_some_of_an_overdrawn_pool() -> None:
    pool = Pool(100)
    mallory, bob = Share(pool, own=10), Share(pool, own=10)
    mallory.take(150)
    bob.take(10)
    assert (mallory.is_over, bob.is_over) == (True, False)
    bob.take(1)
    assert (mallory.is_over, bob.is_over) == (True, True)
    mallory.give_back(51)
    assert (mallory.is_over, bob.is_over) == (False, False)


def test_one_that_is_exempt_gives_back_what_it_drew_and_draws_no_more() -> None:
    pool = Pool(100)
    bob = Share(pool, own=10)
    bob.take(60)
    bob.exempt()
    assert pool.free == 100
    bob.take(1000)
    bob.give_back(1060)
    assert pool.free == 100
    assert bob.fits(1_000_000)


def test_a_share_that_is_wider_draws_less() -> None:
    pool = Pool(100)
    bob = Share(pool, own=10)
    bob.take(60)
    bob.widen(40)
    assert pool.free == 90
    bob.widen(-40)
    assert pool.free == 50
