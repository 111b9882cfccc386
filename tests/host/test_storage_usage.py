"""What grants have used of a machine, kept over the incarnations of its worker."""

import logging
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from formation_p2p.core.errors import StateError
from formation_p2p.state.usage import AccountUsage, UsageFile, UsageParameters, peek
from formation_p2p.trust.core.admission import Charged
from formation_p2p.trust.core.hours import HoursReceived
from formation_p2p.trust.core.quota import UNLIMITED, Quota, QuotaAccount, Used
from formation_p2p.trust.core.shares import ShareUsed
from tests.support.waiting import in_trio

KEPT_MONTHS = UsageParameters().kept_months
SOON = UsageParameters(store_every_s=0.01)

BOB = QuotaAccount("12D3KooWBob", Quota(1000, None, 4))
BLOCK = QuotaAccount("01ae2cb0534f654e9b2e4f34ebb9a59c", Quota(1000))
CAROL = QuotaAccount("12D3KooWCarol", UNLIMITED)


def charged(
    cpu_milli_s: int, *accounts: QuotaAccount, month: str = "2026-11", gpu_milli_s: int = 0
) -> Charged:
    used = Used(cpu_milli_s, gpu_milli_s)
    return Charged(month, accounts or (BOB, BLOCK), used, cause="a lease is renewed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "usage.sqlite"


def test_what_was_charged_is_there_in_the_next_life(path: Path) -> None:
    first = UsageFile(path)
    assert first.load() == ()
    for cpu_milli_s in (100, 200):
        first.add(charged(cpu_milli_s, gpu_milli_s=5))
    first.close()
    second = UsageFile(path)
    expected = {("2026-11", each.name, Used(300, 10)) for each in (BOB, BLOCK)}
    assert set(second.load()) == expected
    second.add(charged(50))
    assert set(second.load()) == {(month, name, Used(350, 10)) for month, name, _ in expected}
    second.close()
    assert path.stat().st_mode & 0o077 == 0


@in_trio
async def test_what_is_charged_is_stored_soon(path: Path) -> None:
    usage = UsageFile(path, SOON)
    usage.add(charged(100))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(usage.keep)
        while len(peek(path, "2026-11")) != 2:  # noqa: ASYNC110 - a look at the disk
            await trio.sleep(0.01)
        nursery.cancel_scope.cancel()
    usage.close()


def test_people_see_who_used_what_of_which_quota_while_a_node_works(path: Path) -> None:
    usage = UsageFile(path)
    usage.add(charged(100, BOB, BLOCK))
    usage.add(charged(7, CAROL, gpu_milli_s=3))
    usage.add(charged(1, QuotaAccount(BOB.name, Quota(2000)), month="2026-12"))
    usage.load()
    assert peek(path, "2026-11") == (
        AccountUsage(BLOCK, Used(100, 0)),
        AccountUsage(BOB, Used(100, 0)),
        AccountUsage(CAROL, Used(7, 3)),
    )
    assert peek(path, "2026-12") == (AccountUsage(QuotaAccount(BOB.name, Quota(2000)), Used(1, 0)),)
    assert peek(path, "2026-10") == ()
    usage.close()


def test_two_workers_of_one_home_add_to_one_count(path: Path) -> None:
    one, other = UsageFile(path), UsageFile(path)
    for usage in (one, other):
        usage.add(charged(100, BOB))
    one.close()
    assert other.load() == (("2026-11", BOB.name, Used(200, 0)),)
    other.close()


def test_a_year_is_kept_for_a_worker_to_begin_with_and_for_people_to_look_back_on(
    path: Path,
) -> None:
    usage = UsageFile(path)
    months = [f"{2020 + n // 12}-{n % 12 + 1:02}" for n in range(KEPT_MONTHS + 3)]
    for month in months:
        usage.add(charged(1, BOB, month=month))
    usage.close()
    usage = UsageFile(path)
    assert [month for month, _, _ in usage.load()] == months[-KEPT_MONTHS:]
    usage.close()
    kept = [month for month in months if peek(path, month)]
    assert kept == months[-KEPT_MONTHS:]


def test_a_worker_begins_with_those_that_used_most_of_the_newest_months(path: Path) -> None:
    usage = UsageFile(path, UsageParameters(max_loaded=3))
    for month in ("2026-10", "2026-11"):
        usage.add(charged(1, BOB, month=month))
        usage.add(charged(2, CAROL, month=month))
    assert usage.load() == (
        ("2026-10", CAROL.name, Used(2, 0)),
        ("2026-11", BOB.name, Used(1, 0)),
        ("2026-11", CAROL.name, Used(2, 0)),
    )
    usage.close()


def test_of_too_many_rows_those_go_that_say_least(path: Path) -> None:
    usage = UsageFile(path, UsageParameters(max_rows=3))
    for n in range(1, 4):
        usage.add(charged(n, QuotaAccount(str(n), UNLIMITED)))
    usage.load()
    usage.add(charged(9, QuotaAccount("9", UNLIMITED)))
    assert {name for _, name, _ in usage.load()} == {"2", "3", "9"}
    for n in range(10, 20):  # and no more than that wait for a disk
        usage.add(charged(n, QuotaAccount(str(n), UNLIMITED)))
    assert {name for _, name, _ in usage.load()} == {"10", "11", "12"}
    usage.close()


def fails(usage: UsageFile) -> Callable[[], None]:
    """Have writing fail; what is returned mends it."""
    db = usage.database.connection
    db.execute("PRAGMA query_only = ON")

    def mend() -> None:
        db.execute("PRAGMA query_only = OFF")

    return mend


def test_nothing_is_lost_while_the_disk_fails(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    usage = UsageFile(path)
    mend = fails(usage)
    usage.add(charged(100, BOB))
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert usage.load() == ()
    assert len(caplog.records) == 1  # once, until it has worked again
    usage.add(charged(11, BOB))
    mend()
    assert usage.load() == (("2026-11", BOB.name, Used(111, 0)),)
    usage.close()


@in_trio
async def test_a_disk_that_fails_costs_the_node_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usage = UsageFile(path, SOON)
    mend = fails(usage)
    usage.add(charged(100, BOB))
    with trio.move_on_after(0.1):
        await usage.keep()
    assert "tried again" in caplog.text
    mend()
    assert usage.load() == (("2026-11", BOB.name, Used(100, 0)),)
    usage.close()


def test_what_can_no_longer_be_read_is_counted_from_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usage = UsageFile(path)
    usage.database.connection.execute("DROP TABLE usage")
    assert usage.load() == ()
    assert "quotas are counted from nothing until it can be read" in caplog.text
    usage.close()


@pytest.mark.parametrize(
    "damage", ["cpu_milli_s = 'x'", "gpu_milli_s = -1", "cpu_milli_s = 1e400", "account = x'00'"]
)
def test_a_value_that_does_not_count_is_damage(
    path: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    usage = UsageFile(path)
    usage.add(charged(100, BOB))
    assert usage.load()
    usage.database.connection.execute(f"UPDATE usage SET {damage}")
    assert usage.load() == ()
    assert "is damaged" in caplog.text
    with pytest.raises(StateError, match="is damaged"):
        peek(path, "2026-11")
    usage.close()


def test_a_file_of_something_else_is_no_count(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE x (y)")
    path.chmod(0o600)
    for look in (lambda: UsageFile(path), lambda: peek(path, "2026-11")):
        with pytest.raises(StateError, match="is not a formation file of quota usage"):
            look()


def test_shares_and_what_was_received_are_there_in_the_next_life(path: Path) -> None:
    first = UsageFile(path, UsageParameters(max_shares=3))
    for number, used_ms in ((1, 10), (2, 20), (2, 30), (3, 40), (4, 50)):
        first.share_used(
            ShareUsed(("fed", "acme", "", "i", f"{number}"), used_ms, number, cause="")
        )
    first.close()
    second = UsageFile(path)
    second.share_used(HoursReceived(("fed", "acme"), 70, 7, cause=""))
    second.close()
    third = UsageFile(path)
    assert [(account[-1], *rest) for account, *rest in third.load_shares()] == [
        ("3", 40, 3),
        ("2", 30, 2),
        ("1", 10, 1),
    ]
    assert third.load_received() == ((("fed", "acme"), 70, 7),)
    third.close()


def test_a_share_that_does_not_count_is_counted_from_nothing(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    usage = UsageFile(path)
    usage.database.connection.execute("INSERT INTO shares VALUES ('7', 1, 1)")
    assert usage.load_shares() == ()
    assert "shares are counted from nothing" in caplog.text
    usage.close()
