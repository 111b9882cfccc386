"""How much of alice's worker the holders of grants may have: quotas, hours and labels.

bob and carol hold parts of one grant; NOW is a Tuesday at 22:13 UTC.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.refusals import Denied
from formation_p2p.trust.core.admission import AdmissionController, Charged, Tolerated
from formation_p2p.trust.core.grants import Rights, attenuate, bind, issue, read_grant
from formation_p2p.trust.core.hours import Hours, parse_hours
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.quota import NOTHING, Quota, QuotaAccount, Used, in_hours, month_of
from formation_p2p.trust.core.statements import Block
from tests.support.stories import BOB, CAROL, MALLORY, NEEDS, identity

TRUST = TrustParameters()

ROOT = identity("root")
KEY = ROOT.public_key
UNIX_S = 1_700_000_000
EXPIRY = UNIX_S + 10**8
MONTH = "2023-11"
GPU_NEEDS = replace(NEEDS, gpu_count=1)
HOUR_S = 3600


def at(seconds: float) -> Moment:
    return Moment(seconds, UNIX_S + seconds)


def granted(of: Contact = BOB, **limits: Any) -> bytes:
    return issue(ROOT, Rights(EXPIRY, **limits), of.peer_id)


def used_by(admission: AdmissionController, account: str, now: Moment = at(0)) -> Used:  # noqa: B008
    """In this month."""
    return admission.used.of(month_of(now.unix_s), account)


class Alice:
    """Her admission, and what it tells."""

    def __init__(
        self,
        labels: Mapping[str, str] | None = None,
        used: Iterable[tuple[str, str, Used]] = (),
        permissive: bool = False,
        parameters: TrustParameters = TRUST,
    ) -> None:
        self.admission = AdmissionController(
            Membership(KEY), labels or {}, used, permissive, parameters
        )
        self.reported: list[Charged | Tolerated] = []

    def why_not(
        self,
        grant: bytes,
        now: Moment = at(0),  # noqa: B008
        *,
        of: Contact = BOB,
        another: bool = True,
        needs: Any = NEEDS,
    ) -> str | None:
        denied = self.admission.denied(grant, of.peer_id, needs, 0, now, another=another)
        return None if denied is None else denied.why

    def leases(
        self, lease_id: str, grant: bytes, begin_s: float, cpu: int = 1000, gpu: int = 0
    ) -> None:
        self.admission.opened(lease_id, grant, cpu, gpu)
        self.admission.began(lease_id, at(begin_s))

    def charges(self, lease_id: str, now_s: float) -> None:
        self.admission.charge(lease_id, now_s, at(now_s))

    def used(self, of: Contact = BOB, now: Moment = at(0)) -> Used:  # noqa: B008
        return used_by(self.admission, of.peer_id, now)

    def charged(self) -> list[Charged]:
        return [effect for effect in self.admission.take() if isinstance(effect, Charged)]

    def tolerated(self) -> list[str]:
        return [effect.why for effect in self.admission.take() if isinstance(effect, Tolerated)]


# -- quotas ------------------------------------------------------------------------------------


def test_who_has_used_up_his_hours_gets_no_more_of_them_this_month() -> None:
    alice, grant = Alice(), granted(quota=Quota(cpu_milli_hours=1000))
    alice.leases("a", grant, 0)
    alice.charges("a", HOUR_S - 1)
    assert alice.why_not(grant) is None
    alice.charges("a", 1.5 * HOUR_S)
    for another in (True, False):
        assert alice.why_not(grant, another=another) == (
            "Monthly CPU quota exceeded: 1.5/1.0 hours, until 2023-12-01"
        )
    next_month = at(20 * 24 * HOUR_S)
    assert alice.why_not(grant, next_month) is None


def test_hours_of_gpus_are_counted_by_themselves() -> None:
    alice, grant = Alice(), granted(quota=Quota(gpu_milli_hours=500))
    alice.leases("a", grant, 0, gpu=2000)
    alice.charges("a", HOUR_S / 4)
    assert alice.used() == Used(900_000, 1_800_000)
    assert (
        alice.why_not(grant, needs=GPU_NEEDS)
        == "Monthly GPU quota exceeded: 0.5/0.5 hours, until 2023-12-01"
    )
    assert alice.why_not(grant) is None  # who takes no GPU may go on


def test_who_holds_as_many_leases_as_he_may_is_to_ask_again_soon() -> None:
    alice, grant = Alice(), granted(quota=Quota(leases=2))
    for lease_id in ("a", "b"):
        assert alice.why_not(grant) is None
        alice.admission.opened(lease_id, grant, 1000, 0)
    denied = alice.admission.denied(grant, BOB.peer_id, NEEDS, 0, at(0), another=True)
    assert denied == Denied("submit", "Concurrent task limit reached: 2/2", TRUST.room_ms)
    assert alice.why_not(grant, another=False) is None  # those that he has go on
    alice.admission.closed("b")
    assert alice.why_not(grant) is None


def test_what_is_made_of_a_grant_shares_its_quota() -> None:
    whole = issue(ROOT, Rights(EXPIRY, quota=Quota(1000, None, 3)))
    bobs = bind(whole, KEY, BOB.peer_id)
    carols = bind(attenuate(whole, KEY, Block(quota=Quota(100, None, 1))), KEY, CAROL.peer_id)
    alice = Alice()
    alice.leases("carol", carols, 0)
    alice.leases("bob", bobs, 0)
    assert alice.why_not(carols, of=CAROL) == "Concurrent task limit reached: 1/1"
    assert alice.why_not(bobs) is None
    alice.charges("carol", 0.1 * HOUR_S)
    assert (
        alice.why_not(carols, of=CAROL)
        == "Monthly CPU quota exceeded: 0.1/0.1 hours, until 2023-12-01"
    )
    alice.charges("bob", 0.9 * HOUR_S)
    # bob himself has used 0.9 of an hour, and the two of them the whole.
    assert alice.why_not(bobs) == "Monthly CPU quota exceeded: 1.0/1.0 hours, until 2023-12-01"


def test_a_second_grant_is_no_second_quota() -> None:
    first, second = (granted(quota=Quota(n, None, 1)) for n in (1000, 1001))
    alice = Alice()
    alice.leases("a", first, 0)
    assert alice.why_not(second) == "Concurrent task limit reached: 1/1"
    alice.charges("a", 2 * HOUR_S)
    assert alice.why_not(second) == "Monthly CPU quota exceeded: 2.0/1.001 hours, until 2023-12-01"


def test_an_offer_costs_nothing_until_it_is_committed() -> None:
    alice, grant = Alice(), granted()
    alice.admission.opened("a", grant, 1000, 0)
    alice.charges("a", 60)
    alice.admission.closed("a")
    assert alice.charged() == []
    for lease_id in ("a", "never there"):
        alice.admission.began(lease_id, at(0))
        alice.charges(lease_id, 60)
        alice.admission.closed(lease_id)
    assert alice.used() == NOTHING


def test_what_is_charged_is_told_once_for_all_accounts() -> None:
    quota = Quota(cpu_milli_hours=1000)
    alice, grant = Alice(), granted(quota=quota)
    alice.leases("a", grant, 0, cpu=1500)
    alice.charges("a", 2)
    alice.charges("a", 2.0001)  # too little to be anything
    (charged,) = alice.charged()
    bob, block = charged.accounts
    assert (bob, block.quota) == (QuotaAccount(BOB.peer_id, quota), quota)
    assert (charged.month, charged.used) == (MONTH, Used(3000, 0))
    assert alice.admission.take() == []


def test_a_lease_is_charged_to_the_month_that_it_is() -> None:
    alice, grant = Alice(), granted()
    december = 1_701_388_800 - UNIX_S
    alice.leases("a", grant, december - 10)
    alice.charges("a", december - 5)
    alice.charges("a", december + 1)
    assert [charged.month for charged in alice.charged()] == ["2023-11", "2023-12"]
    assert alice.used(now=at(december)) == Used(6000, 0)
    assert alice.used(now=at(0)) == Used(5000, 0)


def test_a_clock_that_is_set_right_finds_what_was_used() -> None:
    alice, grant = Alice(), granted()
    alice.leases("a", grant, 0)
    alice.charges("a", 5)
    in_ten_years = UNIX_S + 3653 * 24 * HOUR_S
    alice.admission.charge("a", 6, Moment(6, in_ten_years))
    assert alice.used() == Used(5000, 0)
    alice.charges("a", 10)
    assert alice.used() == Used(9000, 0)


def test_a_clock_that_wanders_for_months_gives_nobody_a_second_quota() -> None:
    alice, grant = Alice(), granted(quota=Quota(cpu_milli_hours=1000))
    alice.leases("a", grant, 0)
    alice.charges("a", HOUR_S)
    spent = "Monthly CPU quota exceeded: 1.0/1.0 hours, until 2023-12-01"
    assert alice.why_not(grant) == spent
    for seconds, days in enumerate((31, 62, 1000, -31, -62)):
        wrong = Moment(HOUR_S + seconds + 1, UNIX_S + days * 24 * HOUR_S)
        assert alice.why_not(grant, wrong) is None  # nor is anyone shut out
        alice.admission.charge("a", wrong.mono_s, wrong)
    assert alice.why_not(grant, at(HOUR_S + 10)) == spent


def test_a_worker_that_starts_with_a_wrong_clock_has_the_right_month_in_mind() -> None:
    grant = granted(quota=Quota(cpu_milli_hours=1))
    months = ("1970-01", MONTH, "2099-01", "2099-02")
    alice = Alice(used=[(month, BOB.peer_id, Used(3600, 0)) for month in months])
    assert alice.why_not(grant) == "Monthly CPU quota exceeded: 0.001/0.001 hours, until 2023-12-01"


def test_a_year_is_remembered() -> None:
    months = [f"{2020 + n // 12}-{n % 12 + 1:02}" for n in range(TRUST.max_months + 2)]
    alice = Alice(used=[(month, "x", Used(5, 0)) for month in months])
    assert list(alice.admission.used.months) == months[-TRUST.max_months :]


def test_of_too_many_months_those_go_that_were_charged_longest_ago() -> None:
    past = [(f"2022-{n:02}", "x", Used(5, 0)) for n in range(1, 12)]
    alice = Alice(used=[*past, ("2099-01", "x", Used(5, 0)), (MONTH, "x", Used(5, 0))])
    alice.leases("a", granted(), 0)
    in_december = Moment(5, UNIX_S + 30 * 24 * HOUR_S)
    alice.admission.charge("a", 5, in_december)
    kept = [month for month, _, _ in past[1:]]
    assert list(alice.admission.used.months) == [*kept, "2099-01", MONTH, "2023-12"]


def test_what_was_charged_last_stays_though_it_has_the_earliest_name() -> None:
    past = [(f"{2022 + n // 12}-{n % 12 + 1:02}", "x", Used(5, 0)) for n in range(TRUST.max_months)]
    alice = Alice(used=past)
    alice.leases("a", granted(), 0)
    for second, days in ((1, -1000), (2, -600), (3, -1000), (4, -630)):
        wrong = Moment(second, UNIX_S + days * 24 * HOUR_S)
        alice.admission.charge("a", second, wrong)
    kept = [month for month, _, _ in past[2:] if month != "2022-03"]
    assert list(alice.admission.used.months) == [*kept, "2022-03", "2021-02", "2022-02"]


def test_what_is_past_makes_room_for_the_accounts_of_this_month() -> None:
    few = TrustParameters(max_accounts=16)
    past = [("2023-10", f"{n}", Used(n, 0)) for n in range(1, 4)]
    alice = Alice(used=[*past, *((MONTH, f"{n}", Used(1, 0)) for n in range(14))], parameters=few)
    assert list(alice.admission.used.months["2023-10"]) == ["3"]
    assert len(alice.admission.used.months[MONTH]) == 14
    more = Alice(used=[*past, *((MONTH, f"{n}", Used(1, 0)) for n in range(16))], parameters=few)
    assert list(more.admission.used.months) == [MONTH]
    assert len(more.admission.used.months[MONTH]) == 16


@pytest.mark.parametrize(
    ("unix_s", "month"),
    [
        (0, "1970-01"),
        (-5, "1970-01"),
        (UNIX_S, MONTH),
        (1_701_388_799.9, MONTH),
        (10**13, "5138-11"),
    ],
)
def test_months_are_those_of_the_calendar(unix_s: float, month: str) -> None:
    assert month_of(unix_s) == month


def test_of_too_many_accounts_those_go_that_have_used_least() -> None:
    used = [(MONTH, f"{n:x}", Used(n, 0)) for n in range(1, 17)]
    few = TrustParameters(max_accounts=16)
    alice = Alice(used=[*used, (MONTH, "gpu", Used(0, 1))], parameters=few)
    left = {name for _, name, _ in used if used_by(alice.admission, name) != NOTHING}
    assert left == {f"{n:x}" for n in range(3, 17)}
    assert used_by(alice.admission, "gpu") == Used(0, 1)


# -- laws --------------------------------------------------------------------------------------

what_happens = st.sampled_from(["open", "charge", "close"])
steps = st.lists(st.tuples(what_happens, st.integers(0, 4), st.integers(0, 3000)), max_size=40)


@given(steps, st.integers(1, 3), st.integers(0, 10))
def test_usage_only_grows_and_leases_keep_to_their_number(
    story: list[tuple[str, int, int]], most: int, limit_milli_hours: int
) -> None:
    """bob and carol share a quota. A lease is opened at most where its whole is not used up."""
    whole = issue(ROOT, Rights(EXPIRY, quota=Quota(limit_milli_hours, None, most)))
    grants = [bind(whole, KEY, peer.peer_id) for peer in (BOB, CAROL)]
    alice, now_s, total = Alice(), 0.0, 0
    are_open: set[str] = set()
    for what, number, wait_ms in story:
        now_s += wait_ms / 1000
        lease_id, of, grant = str(number), (BOB, CAROL)[number % 2], grants[number % 2]
        if what == "open" and lease_id not in are_open:
            if alice.why_not(grant, at(now_s), of=of) is None:
                assert total < limit_milli_hours * 3600
                alice.admission.opened(lease_id, grant, 1000, 0)
                alice.admission.began(lease_id, at(now_s))
                are_open.add(lease_id)
        elif what == "charge":
            alice.charges(lease_id, now_s)
        elif what == "close":
            alice.admission.closed(lease_id)
            are_open.discard(lease_id)
        assert len(are_open) <= most
        charged = [charge.used.cpu_milli_s for charge in alice.charged()]
        assert all(used > 0 for used in charged)
        total += sum(charged)
        assert total == alice.used(BOB).cpu_milli_s + alice.used(CAROL).cpu_milli_s


@given(st.lists(st.integers(1, 20_000), min_size=1, max_size=20), st.integers(1, 64_000))
def test_however_often_a_lease_is_renewed_it_costs_the_same(
    waits_ms: list[int], cpu_milli: int
) -> None:
    often, once = Alice(), Alice()
    now_ms = 0
    for alice in (often, once):
        alice.leases("a", granted(), 0, cpu=cpu_milli)
    for wait_ms in waits_ms:
        now_ms += wait_ms
        often.charges("a", now_ms / 1000)
    once.charges("a", now_ms / 1000)
    assert often.used() == once.used()
    assert abs(once.used().cpu_milli_s - cpu_milli * now_ms / 1000) <= 1 + cpu_milli / 1000


# -- hours and labels --------------------------------------------------------------------------


def test_outside_of_its_hours_a_grant_says_when_they_begin() -> None:
    alice = Alice()
    nights = granted(hours=parse_hours("mon-fri 23:00-08:00"))
    denied = alice.admission.denied(nights, BOB.peer_id, NEEDS, 0, at(0.5), another=True)
    why = "the grant is good mon-fri 23:00-08:00 UTC; that begins next Tue 23:00 UTC"
    assert denied == Denied("submit", why, 2_799_501)
    assert alice.why_not(nights, at(2800)) is None
    assert alice.why_not(nights, at(2800 + 9 * HOUR_S), another=False) == why.replace("Tue", "Wed")


def test_who_has_to_wait_for_longer_than_an_hour_is_not_to_ask_again() -> None:
    weekend = granted(hours=parse_hours("sat-sun 00:00-24:00"))
    denied = Alice().admission.denied(weekend, BOB.peer_id, NEEDS, 0, at(0), another=True)
    assert denied is not None
    assert denied.retry_ms is None
    assert denied.why.endswith("that begins next Sat 00:00 UTC")


def test_an_hour_is_too_long_to_wait_and_what_is_shorter_is_not() -> None:
    alice, weekend = Alice(), granted(hours=parse_hours("sat-sun 00:00-24:00"))
    saturday = 1_700_265_600 - UNIX_S
    waits: list[int | None] = []
    for wait_s in (HOUR_S, HOUR_S - 0.5):
        now = at(saturday - wait_s)
        denied = alice.admission.denied(weekend, BOB.peer_id, NEEDS, 0, now, another=True)
        assert denied is not None
        waits.append(denied.retry_ms)
    assert waits == [None, 1000 * HOUR_S - 499]


def test_hours_that_exclude_each_other_are_never() -> None:
    tuesdays = issue(ROOT, Rights(EXPIRY, hours=parse_hours("tue 00:00-24:00")), BOB.peer_id)
    never = attenuate(tuesdays, KEY, Block(hours=Hours(((0, 60),))))
    assert Alice().why_not(never) == "the grant is good at no hour of the week; ask for another"


def test_a_grant_for_labelled_workers_serves_on_those_alone() -> None:
    grant = granted(labels=frozenset({("site", "lab"), ("region", "eu-west")}))
    assert Alice({"site": "lab", "region": "eu-west", "x": "y"}).why_not(grant) is None
    assert Alice({"site": "home"}).why_not(grant) == (
        "the grant is for workers with region=eu-west and site=lab, and this one is without"
    )
    assert Alice({"site": "lab"}).why_not(grant, another=False) == (
        "the grant is for workers with region=eu-west, and this one is without"
    )


# -- a permissive worker -----------------------------------------------------------------------


def test_a_permissive_worker_tells_of_what_it_would_refuse() -> None:
    alice = Alice(used=[(MONTH, BOB.peer_id, Used(5_400_000, 0))], permissive=True)
    assert alice.why_not(granted(quota=Quota(cpu_milli_hours=1000))) is None
    assert alice.tolerated() == ["Monthly CPU quota exceeded: 1.5/1.0 hours, until 2023-12-01"]
    assert alice.why_not(granted(CAROL, labels=frozenset({("a", "b")})), of=CAROL) is None
    assert alice.tolerated() == ["the grant is for workers with a=b, and this one is without"]


def test_a_permissive_worker_serves_nobody_without_a_grant() -> None:
    alice = Alice(permissive=True)
    assert alice.why_not(b"") == "no grant was shown"
    assert alice.why_not(granted(), of=MALLORY) == "the grant is bound to another peer"
    low = granted(max_priority=1, drivers=frozenset({"wasm"}))
    assert alice.why_not(low) == "the grant allows the drivers wasm, not process"
    assert alice.tolerated() == []


def test_it_tells_of_each_peer_once_a_minute() -> None:
    alice, never = Alice(permissive=True), Quota(leases=0)
    for seconds in (0, 1, TRUST.tolerated_every_s - 0.1, TRUST.tolerated_every_s):
        alice.why_not(granted(quota=never), at(seconds))
    assert len(alice.tolerated()) == 2


def test_it_tells_of_so_many_peers_at_once() -> None:
    assert TRUST.max_tolerated > 2
    alice = Alice(permissive=True, parameters=TrustParameters(max_tolerated=2))
    never = Quota(leases=0)
    for seconds, peer in ((0, BOB), (1, CAROL), (2, MALLORY), (TRUST.tolerated_every_s, MALLORY)):
        assert alice.why_not(granted(peer, quota=never), at(seconds), of=peer) is None
    assert len(alice.tolerated()) == 3


def test_hours_are_written_to_a_thousandth() -> None:
    assert [in_hours(n * 3600) for n in (0, 1, 10, 1000, 1500, 12_345)] == (
        ["0.0", "0.001", "0.01", "1.0", "1.5", "12.345"]
    )


# -- another grant -----------------------------------------------------------------------------


def moved(alice: Alice, lease_id: str, grant: bytes, now_s: float) -> bool:
    return alice.admission.moved(lease_id, grant, BOB.peer_id, NEEDS, 0, at(now_s))


def test_a_lease_that_moves_to_another_grant_is_charged_to_that_from_then_on() -> None:
    alice = Alice()
    first, second = granted(quota=Quota(leases=1)), granted(quota=Quota(leases=2))
    old, new = (read_grant(each, KEY).accounts[-1].name for each in (first, second))
    alice.leases("a", first, 0)
    alice.charges("a", 100)
    assert moved(alice, "a", second, 100)
    alice.charges("a", 130)
    assert used_by(alice.admission, old) == Used(100_000, 0)
    assert used_by(alice.admission, new) == Used(30_000, 0)
    assert alice.used() == Used(130_000, 0)
    alice.admission.closed("a")
    alice.admission.closed("a")
    assert alice.why_not(first) is None


def test_a_lease_stays_on_its_grant_where_the_other_is_denied_or_there_is_no_lease() -> None:
    alice, grant = Alice(), granted()
    alice.leases("a", grant, 0)
    assert not moved(alice, "a", granted(CAROL), 1)
    assert not moved(alice, "b", grant, 1)


def test_who_does_not_bear_a_grant_shares_none_of_its_accounts() -> None:
    admission = Alice().admission
    assert admission.shared(granted(BOB), CAROL.peer_id) == ()
    assert admission.shared(b"no grant", BOB.peer_id) == ()


def test_a_worker_that_asks_no_other_reads_no_voucher() -> None:
    alice = Alice()
    alice.admission.network.extended(BOB.peer_id, (), granted(), b"a voucher", at(0))
    assert alice.used() == NOTHING
