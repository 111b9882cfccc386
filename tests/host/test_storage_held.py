"""What a node holds for its network, kept over its incarnations."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.errors import StateError
from formation_p2p.features.quotas.core.messages import SliceRow
from formation_p2p.features.quotas.core.quota_account import SavedAccount
from formation_p2p.features.quotas.core.quotas import AccountsRecalled
from formation_p2p.features.services.core.events import Had, Recalled
from formation_p2p.features.services.core.shelf import Catalog
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.host.held import AGAIN_ROUNDS, MAX_SPECS
from formation_p2p.node_assembly import held
from formation_p2p.state.held import HeldFile
from formation_p2p.trust.core.quota import Used
from tests.support.services_world import ECHO, granted, person, sealed
from tests.support.waiting import in_trio

NETWORK = b"n" * 32
ALICE, BOB = person("alice"), person("bob")


class Played:
    """A shell with a peer, as far as the file looks at them."""

    def __init__(self) -> None:
        self.peer: Any = self
        self.services: Any = self
        self.quotas: Any = self
        self.holder: Any = self
        self.catalog = Catalog()
        self.had: tuple[Had, ...] = ()
        self.accounts: list[SavedAccount] = []
        self.fed: list[PeerEvent] = []

    def unsaved(self) -> list[SavedAccount]:
        accounts, self.accounts = self.accounts, []
        return accounts

    def feed(self, event: PeerEvent) -> None:
        self.fed.append(event)

    def knows(self, *specs: SignedSpec) -> None:
        for each in specs:
            self.catalog.take(each)


GRANT = granted(ALICE)  # another one each time


def version(number: int, **changes: Any) -> SignedSpec:
    return sealed(ALICE, replace(ECHO, version=number, **changes), GRANT)


def account(used: int, sequence: int, month: str = "2026-11") -> SavedAccount:
    row = SliceRow(BOB.peer_id, sequence, Used(used, 0))
    return SavedAccount("bob", month, "block", (row,))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "held.sqlite"


def opened(path: Path, network: bytes = NETWORK) -> tuple[HeldFile, Played]:
    file, shell = HeldFile(path, held(network, ALICE.peer_id)), Played()
    file.begin(shell.peer, shell.feed)
    return file, shell


def stored(
    path: Path, *specs: SignedSpec, had: Iterable[Had] = (), network: bytes = NETWORK
) -> None:
    file, shell = opened(path, network)
    shell.knows(*specs)
    shell.had = tuple(had)
    file.close()


def told(path: Path, network: bytes = NETWORK) -> list[PeerEvent]:
    file, shell = opened(path, network)
    file.close()
    return shell.fed


def recalled(path: Path, network: bytes = NETWORK) -> Recalled:
    event = told(path, network)[0]
    assert isinstance(event, Recalled)
    return event


def test_what_was_known_is_recalled_the_older_version_first(path: Path) -> None:
    first, second, third = map(version, (1, 2, 3))
    other = version(7, name="other")
    stored(path, first, second, other, third, had=[Had("echo", 1)])
    assert recalled(path) == Recalled((second.raw, third.raw, other.raw), (Had("echo", 1),))
    assert path.stat().st_mode & 0o077 == 0


def test_an_older_copy_takes_nothing_back(path: Path) -> None:
    first, second = version(1), version(2, withdrawn=True)
    file, shell = opened(path)
    old, old_shell = opened(path)  # of another node of the home
    shell.knows(first, second)
    old_shell.knows(first)
    shell.accounts, old_shell.accounts = [account(9, 2)], [account(5, 1)]
    file.close()
    old.close()
    assert told(path) == [
        Recalled((first.raw, second.raw)),
        AccountsRecalled((account(9, 2),)),
    ]


def test_of_two_with_one_version_the_smaller_digest_stays(path: Path) -> None:
    both = sorted((version(1), version(1, port=9)), key=lambda each: each.digest)
    for each in (*both, *reversed(both)):
        stored(path, each)
        known = recalled(path).specs
    assert known == (both[0].raw,)


def test_each_network_and_each_node_has_its_own(path: Path) -> None:
    stored(path, version(1), had=[Had("echo", 0)])
    stored(path, version(2), network=b"m" * 32)
    assert recalled(path).specs == (version(1).raw,)
    bobs = HeldFile(path, held(NETWORK, BOB.peer_id))
    shell = Played()
    bobs.begin(shell.peer, shell.feed)
    bobs.close()
    assert shell.fed == [Recalled((version(1).raw,))]


def test_a_slot_that_is_left_is_forgotten_and_months_that_are_over(path: Path) -> None:
    file, shell = opened(path)
    shell.had = (Had("echo", 0),)
    shell.accounts = [account(1, 1, month) for month in ("2026-09", "2026-10", "2026-11")]
    assert file.store()
    shell.had = ()
    file.close()
    kept, accounts = told(path)
    assert isinstance(kept, Recalled)
    assert isinstance(accounts, AccountsRecalled)
    assert kept.had == ()
    assert [each.month for each in accounts.accounts] == ["2026-10", "2026-11"]


def test_of_too_many_those_that_end_first_go(path: Path) -> None:
    stored(path, version(1))
    raw = sqlite3.connect(path)
    with raw:
        rows = ((b"o", f"s{number}", 1, b"", 10**12 + number, b"") for number in range(MAX_SPECS))
        raw.executemany("INSERT INTO specs VALUES (?, ?, ?, ?, ?, ?)", rows)
    raw.close()
    stored(path, version(2, name="other"))
    assert recalled(path).specs == ()


def test_what_the_clock_does_not_allow_yet_is_offered_again(path: Path) -> None:
    stored(path, version(1))
    file, shell = opened(path)
    for _ in range(2 * AGAIN_ROUNDS):
        file.gather()
    again = Recalled((version(1).raw,))
    assert shell.fed == [again] * 3
    shell.knows(version(1))
    for _ in range(2 * AGAIN_ROUNDS):
        file.gather()
    assert shell.fed == [again] * 3
    file.close()


@in_trio
async def test_what_is_known_now_is_stored_at_once_where_somebody_waits(path: Path) -> None:
    file, shell = HeldFile(path, held(NETWORK, ALICE.peer_id), every_s=1000), Played()
    file.begin(shell.peer, shell.feed)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.keep)
        shell.knows(version(1))
        assert await file.stored()
        nursery.cancel_scope.cancel()
    assert recalled(path).specs == (version(1).raw,)
    file.close()


@pytest.fixture
def full(path: Path) -> Iterator[HeldFile]:
    """On a disk that has no room for one more spec."""
    file, shell = opened(path)
    shell.knows(version(1))
    pages = file.database.connection.execute("PRAGMA page_count").fetchone()[0]
    file.database.connection.execute(f"PRAGMA max_page_count = {pages}")
    shell.knows(*(version(1, name=f"other{number}") for number in range(100)))
    yield file
    file.database.connection.execute(f"PRAGMA max_page_count = {pages + 1000}")
    file.close()


def test_a_full_disk_is_told_and_nothing_is_lost(full: HeldFile, path: Path) -> None:
    assert not full.store()
    full.database.connection.execute("PRAGMA max_page_count = 10000")
    assert full.store()
    assert len(recalled(path).specs) == 101


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("UPDATE specs SET raw = x'00'", "is damaged"),
        ("UPDATE slots SET slot = 'many'", "is damaged"),
        ("UPDATE quotas SET worker = 'nobody'", "is damaged"),
        ("UPDATE quotas SET cpu_milli_s = -1", "is damaged"),
        ("PRAGMA user_version = 99", "use the release that wrote it"),
        ("PRAGMA application_id = 5", "is not a formation file of what a node holds"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(path: Path, statement: str, why: str) -> None:
    file, shell = opened(path)
    shell.knows(version(1))
    shell.had, shell.accounts = (Had("echo", 0),), [account(1, 1)]
    file.close()
    raw = sqlite3.connect(path)
    with raw:
        raw.execute(statement)
    raw.close()
    with pytest.raises(StateError, match=why) as caught:
        HeldFile(path, held(NETWORK, ALICE.peer_id))
    assert str(path) in str(caught.value)
