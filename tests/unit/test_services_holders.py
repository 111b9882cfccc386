"""The peers that keep what is under a name: whom to ask, and whom not for now."""

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Answer
from formation_p2p.features.services.core.holders import MAX_FAILED, Holders
from formation_p2p.features.services.core.shelf import claims_name
from tests.support.dht_world import NETWORK, contact, nearest_first
from tests.support.services_played import PARAMETERS, Played
from tests.support.services_world import NOW

NAME = claims_name(NETWORK, "echo")
ALICE, BOB, CAROL = contact("alice"), contact("bob"), contact("carol")
OWN = Contact(ALICE.peer_id)


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


def failed(*contacts: Contact) -> list[Answer]:
    return [Answer(each, None) for each in contacts]


def known(*contacts: Contact, is_client: bool = True) -> Holders:
    """Alice's, after a lookup that found these."""
    holders = Played(*contacts, is_client=is_client).means.holders
    holders.found(NAME, contacts)
    return holders


def test_a_server_holds_itself_and_a_client_does_not() -> None:
    assert set(known(BOB, is_client=False).nearest(NAME, NOW)) == {BOB, OWN}
    assert known(BOB).nearest(NAME, NOW) == (BOB,)


def test_those_that_an_answer_names_are_asked_where_they_have_addresses() -> None:
    holders = known(BOB)
    closer = (CAROL, Contact(contact("dave").peer_id))
    holders.answered(NAME, [Answer(BOB, kad.Providers((), closer))], NOW)
    assert set(holders.nearest(NAME, NOW)) == {BOB, CAROL}


def test_who_answers_is_one_of_them_though_no_lookup_has_named_it() -> None:
    holders = known(BOB)
    holders.answered(NAME, [Answer(CAROL, kad.Providers(()))], NOW)
    assert set(holders.nearest(NAME, NOW)) == {BOB, CAROL}


def test_who_does_not_answer_is_asked_again_later() -> None:
    holders = known(BOB, CAROL)
    holders.answered(NAME, failed(BOB), NOW)
    assert holders.nearest(NAME, NOW) == (CAROL,)
    assert holders.lost(NAME, NOW) == (BOB,)
    assert set(holders.nearest(NAME, after(PARAMETERS.lost_s))) == {BOB, CAROL}
    holders.answered(NAME, [Answer(BOB, kad.Providers(()))], after(PARAMETERS.lost_s))
    assert holders.lost(NAME, after(PARAMETERS.lost_s)) == ()


def test_who_has_not_answered_for_long_is_forgotten() -> None:
    holders = known(BOB, CAROL)
    holders.answered(NAME, failed(BOB), NOW)
    long = after(PARAMETERS.remembered_s + 1)
    holders.answered(NAME, failed(BOB), long)
    assert holders.lost(NAME, long) == ()
    assert holders.nearest(NAME, after(2 * PARAMETERS.remembered_s)) == (CAROL,)


def test_a_node_that_refuses_itself_a_record_is_not_lost() -> None:
    holders = known(BOB, is_client=False)
    holders.answered(NAME, failed(OWN), NOW)
    assert set(holders.nearest(NAME, NOW)) == {BOB, OWN}
    assert holders.lost(NAME, NOW) == ()


def test_of_many_that_are_found_the_nearest_are_kept() -> None:
    crowd = [contact(f"node {number}") for number in range(40)]
    holders = known(*crowd)
    ranked = nearest_first(NAME, *crowd)
    assert list(holders.nearest(NAME, NOW)) == ranked[:8]
    holders.answered(NAME, failed(*ranked[:8]), NOW)
    assert list(holders.nearest(NAME, NOW)) == ranked[8:16]
    holders.answered(NAME, failed(*ranked[8:16]), NOW)
    assert holders.nearest(NAME, NOW) == ()


def test_of_very_many_that_fail_the_first_are_forgotten() -> None:
    holders = known(BOB)
    holders.answered(NAME, failed(BOB), NOW)
    crowd = [contact(f"node {number}") for number in range(MAX_FAILED)]
    holders.answered(NAME, failed(*crowd), NOW)
    assert holders.nearest(NAME, NOW) == (BOB,)


def test_only_those_nearest_of_all_that_are_known_were_told_of_claims() -> None:
    found = nearest_first(NAME, *(contact(f"peer{number}") for number in range(14)))
    holders = known(*found)
    near, far = found[:8], found[8:]
    holders.answered(NAME, failed(*near), NOW)
    assert holders.nearest(NAME, NOW) == tuple(far)
    silent = kad.Providers(())
    assert holders.knowing(NAME, [Answer(each, silent) for each in far]) == 0
    assert holders.knowing(NAME, [Answer(each, silent) for each in (*near[:2], *far)]) == 2
