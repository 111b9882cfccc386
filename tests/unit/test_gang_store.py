"""The store of a gang: torch's semantics, its bounds, its barriers, and its end."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.features.gangs.core import store as stores
from formation_p2p.features.gangs.core import store_messages as said
from formation_p2p.features.gangs.core.store import (
    MAX_CLIENTS,
    MAX_KEYS,
    MAX_WAITING,
    MAX_WAITING_BYTES,
    Store,
)
from formation_p2p.features.gangs.core.store_client import (
    Answered,
    Changed,
    ClientEffect,
    Say,
    StoreClient,
)
from formation_p2p.features.gangs.core.store_messages import (
    MAX_KEY_CHARS,
    MAX_VALUE_BYTES,
    MAX_WAIT_KEYS,
    Attached,
    Came,
    Detached,
    Done,
    Entry,
    FromStore,
    Problem,
    Refused,
    Resized,
    StoreRequest,
    Tell,
    Tick,
    Value,
    check_key,
    pack_from_client,
    pack_from_store,
    parse_from_client,
    parse_from_store,
)

MINUTE_MS = 60_000


@dataclass
class World:
    """A store, and a client on the node of each rank; `None` is the owner. What the two say goes
    over the wire's format."""

    ranks: tuple[int | None, ...] = (0, 1)
    size: int = 2
    now_s: float = 100.0
    clients: dict[int, StoreClient] = field(default_factory=dict)
    answers: dict[tuple[int, int], said.Answer] = field(default_factory=dict)
    changes: list[tuple[int, Entry]] = field(default_factory=list)
    count: int = 0

    def __post_init__(self) -> None:
        self.clients = {id: StoreClient() for id, _ in enumerate(self.ranks)}
        self.store = Store(self.size)
        for id in self.clients:
            self.connect(id)

    def connect(self, id: int) -> None:
        self.clients[id].connected()
        self.tell(self.store.handle(Attached(id, self.ranks[id]), self.now_s))

    def lose(self, id: int) -> None:
        """The connection of a client."""
        self.perform(id, self.clients[id].lost())
        self.tell(self.store.handle(Detached(id), self.now_s))

    def tell(self, told: list[Tell]) -> None:
        for each in told:
            came = parse_from_store(pack_from_store(each.message))
            self.perform(each.client, self.clients[each.client].came(came))

    def perform(self, id: int, effects: list[ClientEffect]) -> None:
        for effect in effects:
            match effect:
                case Say(message):
                    came = Came(id, parse_from_client(pack_from_client(message)))
                    self.tell(self.store.handle(came, self.now_s))
                case Answered(answer):
                    assert (id, answer.number) not in self.answers
                    self.answers[id, answer.number] = answer
                case Changed(entry):
                    self.changes.append((id, entry))

    def number(self) -> int:
        self.count += 1
        return self.count

    def ask(self, id: int, request: StoreRequest) -> said.Answer | None:
        self.perform(id, self.clients[id].ask(request))
        return self.answers.get((id, request.number))

    def later(self, seconds: float) -> None:
        self.now_s += seconds
        self.tell(self.store.handle(Tick(), self.now_s))

    # short words

    def set(self, id: int, key: str, value: bytes) -> said.Answer | None:
        return self.ask(id, said.Set(self.number(), key, value))

    def get(self, id: int, key: str, timeout_ms: int = 0) -> said.Answer | None:
        return self.ask(id, said.Get(self.number(), key, timeout_ms))

    def add(self, id: int, key: str, amount: int) -> said.Answer | None:
        return self.ask(id, said.Add(self.number(), key, amount))

    def compare_set(self, id: int, key: str, old: bytes, new: bytes) -> bytes:
        answer = self.ask(id, said.CompareSet(self.number(), key, old, new))
        assert isinstance(answer, Value)
        return answer.value

    def arrive(self, id: int, name: str = "b", timeout_ms: int = MINUTE_MS) -> int:
        number = self.number()
        self.ask(id, said.Arrive(number, name, 0, timeout_ms))
        return number


def value_of(answer: said.Answer | None) -> bytes:
    assert isinstance(answer, Value)
    return answer.value


def result_of(answer: said.Answer | None) -> int:
    assert isinstance(answer, Done)
    return answer.result


def problem_of(answer: said.Answer | None) -> Problem:
    assert isinstance(answer, Refused)
    return answer.problem


# -- values ---------------------------------------------------------------------------------------


def test_a_value_that_is_not_there_yet_is_waited_for() -> None:
    world = World()
    assert world.get(1, "a", MINUTE_MS) is None
    assert world.ask(0, said.Wait(77, ("a", "b"), MINUTE_MS)) is None
    world.set(0, "a", b"1")
    assert value_of(world.answers[1, 1]) == b"1"
    assert (0, 77) not in world.answers
    world.set(0, "b", b"")
    assert world.answers[0, 77] == Done(77)
    assert result_of(world.ask(1, said.Wait(78, ("a", "b"), 0))) == 0


def test_a_wait_ends_when_its_time_is_up() -> None:
    world = World()
    assert problem_of(world.get(0, "a", 0)) is Problem.TIMEOUT
    assert world.get(1, "a", 2000) is None
    assert world.ask(1, said.Wait(70, ("a", "b"), 3000)) is None
    assert world.store.next_timeout_s == world.now_s + 2
    world.later(2)
    assert problem_of(world.answers[1, 2]) is Problem.TIMEOUT
    world.later(1)
    assert problem_of(world.answers[1, 70]) is Problem.TIMEOUT
    assert world.store.next_timeout_s == float("inf")
    world.set(0, "a", b"1")  # which is answered to none of them again


def test_numbers_are_added_to_in_decimal() -> None:
    world = World()
    assert result_of(world.add(0, "n", 5)) == 5
    assert result_of(world.add(1, "n", -7)) == -2
    assert value_of(world.get(0, "n")) == b"-2"
    world.set(0, "n", b"x")
    assert problem_of(world.add(0, "n", 1)) is Problem.INVALID
    world.set(0, "n", b"%d" % (2**63 - 1))
    assert problem_of(world.add(0, "n", 1)) is Problem.INVALID


def test_a_value_is_set_where_it_is_the_expected_one() -> None:
    world = World()
    assert world.compare_set(0, "a", b"old", b"new") == b"old"  # as torch: there is none
    assert problem_of(world.get(0, "a")) is Problem.TIMEOUT
    assert world.compare_set(0, "a", b"", b"first") == b"first"
    assert world.compare_set(1, "a", b"wrong", b"second") == b"first"
    assert world.compare_set(1, "a", b"first", b"second") == b"second"
    assert value_of(world.get(0, "a")) == b"second"


def test_keys_are_deleted_and_counted() -> None:
    world = World()
    world.set(0, "a", b"1")
    world.set(0, "b", b"1")
    assert result_of(world.ask(1, said.CountKeys(50))) == 2
    assert result_of(world.ask(1, said.Delete(51, "a"))) == 1
    assert result_of(world.ask(1, said.Delete(52, "a"))) == 0
    assert result_of(world.ask(1, said.CountKeys(53))) == 1


def test_every_change_is_told_to_all_in_the_same_order() -> None:
    world = World((0, 1, None))
    world.set(1, "a", b"1")
    world.set(0, "a", b"2")
    world.ask(2, said.Delete(90, "a"))
    told = [Entry("a", 1, b"1"), Entry("a", 2, b"2"), Entry("a", 3, None)]
    for id in range(3):
        assert [entry for to, entry in world.changes if to == id] == told
        assert world.clients[id].values == {}


def test_the_store_is_bounded() -> None:
    world = World()
    for n in range(15):
        world.set(0, f"large{n}", bytes(MAX_VALUE_BYTES))
    assert problem_of(world.set(0, "more", bytes(MAX_VALUE_BYTES))) is Problem.FULL
    assert result_of(world.set(0, "large0", b"")) == 0
    assert result_of(world.set(0, "more", bytes(MAX_VALUE_BYTES))) == 0


def test_keys_are_bounded() -> None:
    store = Store(1)
    store.handle(Attached(0, 0), 0.0)
    for n in range(MAX_KEYS):
        store.handle(Came(0, said.Set(n, f"k{n}", b"")), 0.0)
    for request in (
        said.Add(-1, "more", 1),
        said.CompareSet(-1, "more", b"", b"x"),
        said.Arrive(-1, "more", 1, MINUTE_MS),
    ):
        [told] = store.handle(Came(0, request), 0.0)
        assert isinstance(told.message, Refused)
        assert (told.message.number, told.message.problem) == (-1, Problem.FULL)
    told, answer = store.handle(Came(0, said.Set(-1, "k0", b"other")), 0.0)
    assert answer == Tell(0, Done(-1))


def test_the_waiting_are_bounded_here_and_there() -> None:
    world = World()
    for _ in range(MAX_WAITING):
        assert world.get(1, "never", MINUTE_MS) is None
    assert problem_of(world.get(1, "never", MINUTE_MS)) is Problem.FULL
    told = world.store.handle(Came(1, said.Get(5000, "never", MINUTE_MS)), world.now_s)
    assert [problem_of(each.message) for each in told if isinstance(each.message, Refused)] == [
        Problem.FULL
    ]
    told = world.store.handle(Came(1, said.Arrive(5001, "b", 1, MINUTE_MS)), world.now_s)
    assert len(told) == 1  # likewise


def test_the_keys_that_are_waited_for_are_bounded() -> None:
    world = World()
    # Each character takes two bytes.
    largest = tuple("\u03b1" * (MAX_KEY_CHARS - 3) + f"{n:03}" for n in range(MAX_WAIT_KEYS))

    def waits() -> said.Answer | None:
        return world.ask(1, said.Wait(world.number(), largest, MINUTE_MS))

    answers = [waits() for _ in range(MAX_WAITING // 64)]
    held = answers.index(next(each for each in answers if each is not None))
    assert 0 < held * MAX_WAIT_KEYS * 2 * MAX_KEY_CHARS < MAX_WAITING_BYTES
    assert {problem_of(each) for each in answers[held:]} == {Problem.FULL}
    assert world.get(0, "other", MINUTE_MS) is None  # which has its own
    # Those that are answered make room.
    world.later(60)
    assert waits() is None


def test_a_request_whose_asker_is_gone_is_forgotten() -> None:
    world = World()
    assert world.get(1, "a", MINUTE_MS) is None
    world.perform(1, world.clients[1].cancel(1))
    world.perform(1, world.clients[1].cancel(1))
    world.tell(world.store.handle(Came(1, said.CancelRequest(1)), world.now_s))
    world.set(0, "a", b"1")
    assert (1, 1) not in world.answers
    assert world.clients[1].came(Done(1)) == []  # crossed with its cancelling


def test_a_client_that_is_gone_waits_for_nothing() -> None:
    world = World()
    assert world.get(1, "a", MINUTE_MS) is None
    world.arrive(1)
    assert world.store.handle(Detached(1), world.now_s) == []
    assert [each.client for each in world.store.handle(Came(0, said.Set(9, "a", b"")), 100.0)] == [
        0,
        0,
    ]


# -- barriers -------------------------------------------------------------------------------------


def test_a_barrier_opens_when_all_ranks_are_there_and_again_the_next_time() -> None:
    world = World((0, 1, 2), size=3)
    for turn in range(1, 3):
        first, second = world.arrive(0), world.arrive(2)
        assert (0, first) not in world.answers
        last = world.arrive(1)
        assert [world.answers[at] for at in ((0, first), (2, second), (1, last))] == [
            Done(first),
            Done(second),
            Done(last),
        ]
        assert world.clients[0].values["_barrier/b"].value == b"%d" % turn
    assert result_of(world.ask(0, said.CountKeys(60))) == 0


def test_a_barrier_that_not_all_ranks_reach_times_out() -> None:
    world = World((0, 1, None))
    of_owner = world.arrive(2)
    assert problem_of(world.answers[2, of_owner]) is Problem.INVALID
    world.answers.clear()
    numbers = [world.arrive(0, timeout_ms=1000) for _ in range(2)]  # who arrives twice is one
    assert world.answers == {}
    world.later(1)
    assert [problem_of(world.answers[0, each]) for each in numbers] == [Problem.TIMEOUT] * 2
    late = world.arrive(1)
    assert (1, late) not in world.answers
    world.arrive(0)
    assert (1, late) in world.answers


def test_a_gang_that_shrinks_opens_the_barrier_for_those_who_are_left() -> None:
    world = World((0, 1), size=3)
    world.arrive(0)
    world.arrive(1)
    assert world.answers == {}
    world.tell(world.store.handle(Resized(2), world.now_s))
    assert len(world.answers) == 2


# -- a connection is lost --------------------------------------------------------------------------


def test_a_client_that_comes_back_is_told_all_anew() -> None:
    world = World()
    world.set(0, "a", b"1")
    world.set(0, "b", b"1")
    world.lose(1)
    world.changes.clear()
    world.ask(0, said.Delete(90, "a"))
    world.set(0, "b", b"2")
    world.connect(1)
    assert [entry for id, entry in world.changes if id == 1] == [
        Entry("a", 4, None),
        Entry("b", 4, b"2"),
    ]
    assert world.clients[0].values == world.clients[1].values


def test_what_waited_waits_on_and_what_may_have_been_done_is_said() -> None:
    world = World()
    assert world.get(1, "a", MINUTE_MS) is None
    at_barrier = world.arrive(1)
    world.clients[1].ask(said.Add(40, "n", 1))  # which does not get there
    world.lose(1)
    assert problem_of(world.answers[1, 40]) is Problem.MOVED
    assert world.clients[1].lost() == []  # which says nothing new
    assert world.add(1, "later", 1) is None  # not under way yet: it is done once
    world.connect(1)
    assert result_of(world.answers[1, world.count]) == 1
    world.set(0, "a", b"1")
    assert value_of(world.answers[1, 1]) == b"1"
    world.arrive(0)
    assert world.answers[1, at_barrier] == Done(at_barrier)


def test_a_barrier_that_was_passed_is_passed_for_those_who_were_not_told() -> None:
    world = World()
    first = world.arrive(0)
    # Rank 1 arrives, and its node alone hears that the barrier has opened.
    number = world.number()
    told = world.store.handle(Came(1, said.Arrive(number, "b", 1, MINUTE_MS)), world.now_s)
    world.tell([each for each in told if each.client == 1])
    world.lose(0)
    world.connect(0)
    assert world.answers[0, first] == Done(first)


# -- what is not allowed --------------------------------------------------------------------------


def test_a_client_that_breaks_the_rules_is_found_out() -> None:
    world = World()
    world.get(1, "a", MINUTE_MS)
    with pytest.raises(ProtocolViolation, match="same number"):
        world.store.handle(Came(1, said.Get(1, "a", 0)), world.now_s)


def test_clients_are_bounded() -> None:
    store = Store(2)
    for id in range(MAX_CLIENTS):
        store.handle(Attached(id, 1), 0.0)
    with pytest.raises(ProtocolViolation):
        store.handle(Attached(MAX_CLIENTS, 1), 0.0)


@pytest.mark.parametrize(
    ("before", "message"),
    [
        ((), Entry("a", 1, b"")),
        ((), said.Opened(0)),
        ((said.Opened(0),), said.Opened(0)),
        ((said.Opened(5),), Entry("a", 5, b"")),
    ],
)
def test_a_store_that_breaks_the_rules_is_found_out(
    before: tuple[FromStore, ...], message: FromStore
) -> None:
    client = StoreClient()
    if before:
        client.connected()
    for each in before:
        client.came(each)
    with pytest.raises(ProtocolViolation):
        client.came(message)


@pytest.mark.parametrize("is_open", [False, True])
def test_a_store_that_tells_too_much_is_found_out(is_open: bool) -> None:
    client = StoreClient()
    client.connected()
    if is_open:
        client.came(said.Opened(0))
    for n in range(1, 16):
        client.came(Entry(f"k{n}", n, bytes(MAX_VALUE_BYTES)))
    with pytest.raises(ProtocolViolation, match="more than one holds"):
        client.came(Entry("k16", 16, bytes(MAX_VALUE_BYTES)))


@pytest.mark.parametrize("key", ["", "a b", "a\nb", "k" * 513, "_barrier/x"])
def test_a_key_has_a_form(key: str) -> None:
    with pytest.raises(InvalidInput):
        check_key(key)
    with pytest.raises(ProtocolViolation):
        parse_from_client(pack_from_client(said.Set(1, key, b"")))


def test_a_problem_that_is_not_known_and_a_barrier_without_a_count_do_not_parse() -> None:
    frame = pack_from_store(Refused(1, Problem.FULL, ""))
    with pytest.raises(ProtocolViolation, match="is not known"):
        parse_from_store(frame.replace(b"full", b"fool"))
    with pytest.raises(ProtocolViolation):
        parse_from_store(b"\x84\x14\x6a_barrier/b\x01\x41x")


@given(st.binary(max_size=64))
def test_no_bytes_break_the_parsers(raw: bytes) -> None:
    for parse in (parse_from_client, parse_from_store):
        try:
            parse(raw)
        except ProtocolViolation:
            continue


def test_the_bounds_fit_a_frame() -> None:
    largest = said.CompareSet(2**63 - 1, "k" * 512, b"", bytes(MAX_VALUE_BYTES))
    assert len(pack_from_client(largest)) <= said.MAX_FRAME_BYTES
    assert stores.MAX_STORE_BYTES > MAX_VALUE_BYTES
