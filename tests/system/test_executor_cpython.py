"""The executor passes CPython's own cases for executors, over a real network of one worker.

All cases of `ExecutorTest`, `WaitTests` and `AsCompletedTests`, and those of `ExecutorShutdownTest`
but for these, which are about the end of a program that left a pool of its own open. A node ends
with the block that entered it, and what it has not done by then fails with NodeClosed
(tests/system/test_executor.py):

    test_interpreter_shutdown, test_submit_after_interpreter_shutdown, test_hang_gh83386,
    test_hang_gh94440

Of the other files of `test_concurrent_futures`, `test_future` tests `Future` alone, and
`test_thread_pool`, `test_process_pool`, `test_init` and `test_deadlock` test what only those pools
have: their threads and processes, their queues, initializers, contexts of multiprocessing, and a
pool that breaks when one of its processes does. What is general there is in test_executor.py.
"""

from __future__ import annotations

import tempfile
import time
import unittest
from contextlib import ExitStack
from pathlib import Path
from typing import ClassVar

import cloudpickle

from formation_p2p import Home, Limits, SyncNode
from formation_p2p.api.executor import NodeExecutor
from formation_p2p.core.units import MIB
from formation_p2p.trust.core.grants import Rights
from tests.system.cpython import cases

LOOPBACK = ("/ip4/127.0.0.1/tcp/0",)
WORKERS = 5
# A fifth of two cores each.
NEEDS = "cpu=0.4,memory=64MiB"


class Network(unittest.TestCase):
    """A gate that works as well, and bob, who submits."""

    worker_count = WORKERS
    bob: ClassVar[SyncNode]
    _open: ClassVar[ExitStack]

    @classmethod
    def setUpClass(cls) -> None:
        # The worker does not have this module: it gets the cases' functions themselves.
        cloudpickle.register_pickle_by_value(cases)
        cls.addClassCleanup(cloudpickle.unregister_pickle_by_value, cases)
        stack = ExitStack()
        cls.addClassCleanup(stack.close)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        home = Home(folder / "alice")
        home.create_network()
        alice = stack.enter_context(SyncNode.join(home=home.path, listen=LOOPBACK))
        home.add_gate(alice.addresses[0])
        alice.worker(limits=Limits(cpu_milli=2000, memory_bytes=1024 * MIB))
        join = home.invite(Rights(int(time.time()) + 3600))
        cls.bob = stack.enter_context(SyncNode.join(join, home=folder / "bob", listen=()))

    def setUp(self) -> None:
        self.executor = self.executor_type(max_workers=self.worker_count)

    def tearDown(self) -> None:
        self.executor.shutdown(wait=True)

    @classmethod
    def executor_type(cls, max_workers: int) -> NodeExecutor:
        return cls.bob.executor(needs=NEEDS, max_workers=max_workers, trust_results=True)


class TestExecutor(cases.ExecutorTest, Network):
    def test_map_timeout(self) -> None:
        """Of its 5 s the interpreters would take all to start, where the machine is busy."""
        list(self.executor.map(time.sleep, [0] * WORKERS))
        super().test_map_timeout()  # type: ignore[no-untyped-call]


class TestWait(cases.WaitTests, Network):
    pass


class TestAsCompleted(cases.AsCompletedTests, Network):
    pass


class TestShutdown(cases.ExecutorShutdownTest, Network):
    pass
