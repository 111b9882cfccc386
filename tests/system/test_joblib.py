"""joblib's backend, over a real worker: plain functions, and scikit-learn."""

import asyncio
import os
import secrets
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle
import numpy as np
import pytest
from joblib import Parallel, delayed, effective_n_jobs, parallel_config

import formation_p2p.joblib
from formation_p2p import Home, InvalidInput, Limits, Node, NodeClosed, Rights, SyncNode
from formation_p2p.core.errors import Unplaceable
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN
from tests.support.network import LOOKS_S, runs
from tests.support.waiting import wait_until

# scikit-learn is imported in the tests that need it: it takes two seconds, which each process that
# collects tests would spend.

# What the tests send is theirs, as a script's own functions are: interpreters need not import this
# module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

MACHINE = Limits(cpu_milli=2000, memory_bytes=2048 * MIB)
# Two people share a worker here: what one keeps, the other waits for.
SMALL = {"needs": "cpu=1,memory=512MiB", "linger_s": 1.0}


@pytest.fixture(scope="module")
def person(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """How a person joins a network with a gate that works, too."""
    folder = tmp_path_factory.mktemp("joblib")
    home = Home(folder / "alice")
    home.create_network()
    with SyncNode.join(home=home.path, listen=LISTEN) as alice:
        home.add_gate(alice.addresses[0])
        alice.worker(limits=MACHINE)
        invite = home.invite(Rights(int(time.time()) + 3600))
        yield {"join": invite, "home": folder / "bob", "listen": ()}


@pytest.fixture(scope="module")
def bob(person: dict[str, Any]) -> Iterator[SyncNode]:
    with SyncNode.join(**person) as bob:
        wait_until(lambda: len(bob.workers()) == 1)
        yield bob


def square(n: int) -> int:
    return n * n


def row(table: Any, n: int) -> int:
    return int(table[n])


def sleeps_or_fails(long: str, fails: bool) -> None:
    if fails:
        time.sleep(0.5)
        raise LookupError("one of them failed")
    subprocess.run(["sleep", long], check=True)


def test_calls_run_on_workers_in_batches(bob: SyncNode, monkeypatch: pytest.MonkeyPatch) -> None:
    # On the slowest machine none lasts so long, so that each may be larger than the one before.
    monkeypatch.setattr(formation_p2p.joblib.FormationBackend, "MIN_IDEAL_BATCH_DURATION", 1000.0)
    monkeypatch.setattr(formation_p2p.joblib.FormationBackend, "MAX_IDEAL_BATCH_DURATION", 5000.0)
    with parallel_config("formation", node=bob, needs="cpu=0.5,memory=256MiB"):
        assert effective_n_jobs() == effective_n_jobs(-1) == 4
        assert (effective_n_jobs(-2), effective_n_jobs(-9), effective_n_jobs(3)) == (3, 2, 3)
    with parallel_config("formation", node=bob, **SMALL):
        pids = Parallel()(delayed(os.getpid)() for _ in range(4))
        assert os.getpid() not in pids
        parallel = Parallel()
        assert parallel(delayed(square)(n) for n in range(1000)) == [n * n for n in range(1000)]
        assert parallel.n_dispatched_batches < 500
        table = bob.put(np.arange(1000))
        assert parallel(delayed(row)(table, n) for n in range(50)) == list(range(50))
        with Parallel(n_jobs=2, return_as="generator") as stream:
            numbers = stream(delayed(square)(n) for n in range(1, 6))
            assert next(numbers) == 1
            assert list(numbers) == [4, 9, 16, 25]


def count_up(by: int) -> None:
    sys.__dict__["counted"] = sys.__dict__.get("counted", 0) + by
    os.environ["SET_BY_THE_INITIALIZER"] = "1"


def counted() -> int:
    time.sleep(0.2)  # a batch each
    return int(sys.__dict__.get("counted", 0)) * int(os.environ["SET_BY_THE_INITIALIZER"])


def test_an_initializer_is_called_once_in_each_interpreter(bob: SyncNode) -> None:
    first: dict[str, Any] = {"initializer": count_up, "initargs": (5,)}
    with parallel_config("formation", node=bob, **SMALL, **first):
        for _ in range(2):
            assert set(Parallel()(delayed(counted)() for _ in range(4))) == {5}
    with parallel_config("formation", node=bob, needs="cpu=1,memory=300MiB"):
        assert set(Parallel(**first)(delayed(counted)() for _ in range(4))) == {5}


def test_the_calls_of_a_loop_find_their_interpreters_running(bob: SyncNode) -> None:
    pids: list[set[int]] = [set()]

    def found() -> bool:
        time.sleep(0.5)  # longer than leases are kept without the backend
        pids.append(set(Parallel()(delayed(os.getpid)() for _ in range(4))))
        return bool(pids[-2] & pids[-1])

    with parallel_config("formation", node=bob, needs=SMALL["needs"]):
        wait_until(found)


def test_a_call_that_fails_stops_the_others_and_the_next_ones_run(bob: SyncNode) -> None:
    long = f"600.{secrets.randbelow(10**9)}"
    with parallel_config("formation", node=bob, **SMALL), Parallel(n_jobs=3) as parallel:
        with pytest.raises(LookupError, match="one of them failed"):
            parallel(delayed(sleeps_or_fails)(long, fails) for fails in (True, False, False))
        wait_until(lambda: not runs(long), every_s=LOOKS_S)
        assert parallel(delayed(square)(n) for n in (1, 2)) == [1, 4]


def test_results_of_any_size_come_back(bob: SyncNode) -> None:
    with parallel_config("formation", node=bob, **SMALL):
        arrays = Parallel()(delayed(np.full)(MIB // 4, n, float) for n in range(6))
    assert [(each.nbytes, each[-1]) for each in arrays] == [(2 * MIB, n) for n in range(6)]


class Odd:
    """No plain data."""

    def __reduce__(self) -> tuple[type[object], tuple[()]]:
        return type(self), ()


def test_results_are_data_unless_they_are_trusted(bob: SyncNode) -> None:
    with parallel_config("formation", node=bob, **SMALL):
        arrays = Parallel()(delayed(np.full)(3, n, float) for n in range(3))
        assert [list(each) for each in arrays] == [[n] * 3 for n in (0.0, 1.0, 2.0)]
        with pytest.raises(formation_p2p.RemoteError, match="trust_results"):
            Parallel()(delayed(Odd)() for _ in range(2))
    with parallel_config("formation", node=bob, trust_results=True, **SMALL):
        made = Parallel()(delayed(Odd)() for _ in range(2))
        assert [type(each).__name__ for each in made] == ["Odd", "Odd"]


def nested(n: int, backend: str | None = None) -> tuple[set[int], int]:
    squares = Parallel(n_jobs=4, backend=backend)(delayed(square)(each) for each in range(n))
    pids = set(Parallel(n_jobs=4)(delayed(os.getpid)() for _ in range(4)))
    return pids | {os.getpid()}, sum(squares)


def test_what_a_call_starts_in_turn_stays_in_its_process(bob: SyncNode) -> None:
    with parallel_config("formation", node=bob, **SMALL):
        backends = (None, "formation", "threading")
        for pids, total in Parallel()(delayed(nested)(4, each) for each in backends):
            assert len(pids) == 1
            assert total == 14


def level() -> int:
    with parallel_config("threading") as config:
        found: int = config["backend"].nesting_level
    return found


def test_what_a_call_starts_in_turn_is_one_level_below_it(bob: SyncNode) -> None:
    assert Parallel(backend="formation", node=bob, **SMALL)([delayed(level)()]) == [1]


def test_the_node_is_named_by_parallel_itself(bob: SyncNode) -> None:
    parallel = Parallel(backend="formation", node=bob, **SMALL)
    assert os.getpid() not in parallel(delayed(os.getpid)() for _ in range(2))
    with pytest.raises(InvalidInput, match="does not take this option"):
        Parallel(backend="formation", node=bob, atempts=3)(delayed(square)(n) for n in (1, 2))
    with parallel_config("formation", node=bob, **SMALL):
        again = Parallel(backend="formation")
        assert again(delayed(square)(n) for n in (1, 2)) == [1, 4], "it takes the node of the block"


def interrupts() -> None:
    raise KeyboardInterrupt


def fills(table: Any, n: int) -> int:
    table[n] = n
    return int(table.sum())


def test_a_call_is_interrupted_named_and_warned_of_as_with_the_backends_of_joblib(
    bob: SyncNode, tmp_path: Path
) -> None:
    with parallel_config("formation", node=bob, **SMALL):
        with pytest.raises(KeyboardInterrupt, match="interrupted on its worker"):
            Parallel()(delayed(interrupts)() for _ in range(2))
        with pytest.raises(TypeError) as refused:
            Parallel()(delayed(square)(each) for each in (1, threading.Lock()))
        assert str(refused.value).startswith("argument 1 of square is a lock")
        table: Any = np.memmap(tmp_path / "table", dtype=int, mode="w+", shape=4)
        with pytest.warns(UserWarning, match="arrives as a copy: return what"):
            assert Parallel()(delayed(fills)(table, n) for n in (1, 2)) in ([1, 2], [1, 3])
        assert not table.any()


async def test_a_node_of_a_loop_works_from_a_thread_and_from_its_own(
    person: dict[str, Any], bob: SyncNode
) -> None:
    async with Node.join(**person) as node:

        def calls() -> list[int]:
            with parallel_config("formation", node=node, **SMALL):
                result: list[int] = Parallel()(delayed(square)(n) for n in range(5))
                return result

        assert await asyncio.to_thread(calls) == [0, 1, 4, 9, 16]
        assert calls() == [0, 1, 4, 9, 16], "joblib blocks the loop, which the calls do not need"
    with pytest.raises(NodeClosed, match="join again"):
        calls()


def test_errors_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r'parallel_config\("formation", node=node\)'):
        Parallel(n_jobs=2, backend="formation")(delayed(square)(n) for n in range(2))
    home = Home(tmp_path / "home")
    home.create_network()
    with SyncNode.join(home=home.path, listen=()) as alone:
        with pytest.raises(InvalidInput, match="does not take this option"):
            parallel_config("formation", node=alone, atempts=3)
        with parallel_config("formation", node=alone):
            with pytest.raises(Unplaceable, match="is one running in this network"):
                Parallel()(delayed(square)(n) for n in range(2))
            with pytest.raises(ValueError, match="n_jobs == 0"):
                Parallel(n_jobs=0)(delayed(square)(n) for n in range(2))
            here = Parallel(n_jobs=1)(delayed(threading.get_ident)() for _ in range(2))
            assert here == [threading.get_ident()] * 2
    without = "import sys; sys.modules['joblib'] = None; import formation_p2p.joblib"
    done = subprocess.run(
        [sys.executable, "-c", without], capture_output=True, text=True, timeout=60, check=False
    )
    assert "pip install 'formation_p2p[joblib]'" in done.stderr.splitlines()[-1]


def warning_of_a_package_of_ours() -> type[Warning]:
    """Which scikit-learn names in its calls, and workers cannot import."""
    ours = sys.modules["ours_alone"] = ModuleType("ours_alone")
    kind = type("OursAlone", (UserWarning,), {"__module__": ours.__name__})
    vars(ours)[kind.__name__] = kind
    return kind


def test_scikit_learn_searches_on_the_network_and_grows_forests_there(bob: SyncNode) -> None:
    from sklearn.datasets import load_iris
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV

    # In the same interpreters, which import it for seconds.
    kept = {**SMALL, "linger_s": 10.0}
    x, y = (each[::3] for each in load_iris(return_X_y=True))
    model = LogisticRegression(max_iter=1000)
    search = GridSearchCV(model, {"C": [0.01, 1, 100]}, cv=3)
    here = GridSearchCV(model, {"C": [0.01, 1, 100]}, cv=3).fit(x, y)
    with parallel_config("formation", node=bob, **kept), warnings.catch_warnings():
        warnings.simplefilter("ignore", warning_of_a_package_of_ours())
        there = search.fit(x, y)
    assert there.best_params_ == here.best_params_
    for key in ("mean_test_score", "std_test_score", "rank_test_score"):
        np.testing.assert_allclose(there.cv_results_[key], here.cv_results_[key])
    forest = RandomForestClassifier(n_estimators=4, random_state=1)
    forests = GridSearchCV(
        RandomForestClassifier(n_estimators=2, n_jobs=2), {"max_depth": [2, 3]}, cv=2
    )
    with parallel_config("formation", node=bob, trust_results=True, **kept):
        forest.fit(x, y)
        assert forests.fit(x, y).best_params_["max_depth"] in (2, 3)
    same = RandomForestClassifier(n_estimators=4, random_state=1).fit(x, y)
    np.testing.assert_array_equal(forest.predict(x), same.predict(x))


def test_a_batch_runs_where_this_package_is_not() -> None:
    program = """
import sys
sys.modules["formation_p2p"] = None
import cloudpickle
run_batch = cloudpickle.loads(sys.stdin.buffer.read())
assert run_batch([]) == []
"""
    batch = cloudpickle.dumps(formation_p2p.joblib.run_batch)
    subprocess.run([sys.executable, "-c", program], input=batch, timeout=60, check=True)
