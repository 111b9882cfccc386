"""Jobs that were submitted over HTTP: what they have told so far, for any number of readers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from formation_p2p.core.errors import FormationError, Unplaceable
from formation_p2p.features.gateway.sources import RunningJob, Source
from formation_p2p.features.gateway.streams import cancelled
from formation_p2p.net.limits import counted
from formation_p2p.workload.core.process import ProcessSpec

# That run; a program that has more submits them as tasks of one.
MAX_RUNNING: Final = 256
# Of one holder of tokens, so that four that want all of them leave room for a fifth that comes and
# goes. On loopback all is of one holder, the machine's.
MAX_OF_ONE: Final = 60
# That have ended, and can still be asked about; and the tasks of them all. A result has 128 KiB at
# most of what its task printed.
MAX_ENDED: Final = 256
MAX_ENDED_TASKS: Final = 4096
# Of one job: what a late reader still gets. An event takes a few hundred bytes, one with output up
# to 64 KiB: of these only so much together.
MAX_EVENTS: Final = 2048
MAX_PRINTED_CHARS: Final = 1 << 20
# Of one task, in an answer about its job.
MAX_SHOWN_CHARS: Final = 16 * 1024


class HttpJob:
    """`holder` made the token with which it was submitted; others are not told that it exists."""

    def __init__(
        self, job: RunningJob, labels: Sequence[str], holder: str, on_behalf: bytes
    ) -> None:
        self._job = job
        self.on_behalf = on_behalf
        self.holder = holder
        self.job_id = job.job_id
        self.name = job.name
        self.labels = labels
        self.submitted_unix_s = time.time()
        self.ended_unix_s: float | None = None
        self.error = ""
        self.counts: dict[str, int] = {}
        self.events: deque[tuple[int, Mapping[str, Any]]] = deque()
        self._number = 0
        self._printed_chars = 0
        self._news = asyncio.Condition()
        self.following = asyncio.ensure_future(self._follow())

    @property
    def is_over(self) -> bool:
        return self.ended_unix_s is not None

    @property
    def state(self) -> str:
        if not self.is_over:
            return "running"
        if self.error:
            return "failed"
        failed = self.counts.get("failed", 0) + self.counts.get("unplaceable", 0)
        if self.counts.get("cancelled"):
            return "cancelled"
        return "failed" if failed else "succeeded"

    def cancel(self) -> None:
        self._job.cancel()

    def summary(self) -> dict[str, Any]:
        return {
            "job_id": self.job_id,
            "name": self.name,
            "state": self.state,
            "tasks": len(self.labels),
            "done": sum(self.counts.values()),
            "submitted_unix_s": round(self.submitted_unix_s, 3),
            "ended_unix_s": self.ended_unix_s and round(self.ended_unix_s, 3),
        }

    def whole(self) -> dict[str, Any]:
        """With each task: what came of it, or what it has printed so far."""
        results = self._job.results()
        ended = {each["task_id"]: each for each in results}
        printed = self._printed_by()
        tasks = [
            {
                "task_id": task,
                "label": label,
                "printed": printed.get(task, ""),
                **ended.get(task, {}),
            }
            for task, label in zip(self._job.task_ids, self.labels, strict=True)
        ]
        return {**self.summary(), "error": self.error, "results": results, "every_task": tasks}

    def _printed_by(self) -> dict[str, str]:
        """The end of what tasks have printed, of what is kept."""
        found: dict[str, str] = {}
        for _, event in self.events:
            if event.get("event") == "printed" and (task := event.get("task_id")) is not None:
                found[task] = (found.get(task, "") + str(event["text"]))[-MAX_SHOWN_CHARS:]
        return found

    async def _follow(self) -> None:
        try:
            async for event in self._job.events():
                await self._tell(event)
        except FormationError as error:
            self.error = str(error)
        finally:
            self.ended_unix_s = time.time()
            await self._tell({"event": "over", "state": self.state, "error": self.error})

    async def _tell(self, event: Mapping[str, Any]) -> None:
        if (outcome := str(event.get("event"))) in _OUTCOMES:
            self.counts[outcome] = self.counts.get(outcome, 0) + 1
        self._number += 1
        self._keep(event)
        async with self._news:
            self._news.notify_all()

    def _keep(self, event: Mapping[str, Any]) -> None:
        if len(self.events) == MAX_EVENTS:
            self._drop()
        self.events.append((self._number, event))
        self._printed_chars += _printed(event)
        while self._printed_chars > MAX_PRINTED_CHARS:
            self._drop()

    def _drop(self) -> None:
        _, event = self.events.popleft()
        self._printed_chars -= _printed(event)

    async def after(self, number: int) -> AsyncIterator[tuple[int, Mapping[str, Any]]]:
        """The events from that one on, to the end. What a slow reader misses past the bound it
        can tell by the numbers."""
        while True:
            for told, event in list(self.events):
                if told > number:
                    number = told
                    yield told, event
            if self.is_over and (not self.events or self.events[-1][0] <= number):
                return
            async with self._news:
                while not self.is_over and self._number <= number:
                    await self._news.wait()


_OUTCOMES: Final = ("succeeded", "failed", "unplaceable", "cancelled")


def _printed(event: Mapping[str, Any]) -> int:
    return len(event.get("text") or "")


class TooManyJobs(Unplaceable):
    """A gateway takes no more jobs; `of_one` where the one that submits has its share."""

    def __init__(self, most: int, *, of_one: bool) -> None:
        whose = "of yours run at this gateway" if of_one else "run at this gateway"
        super().__init__(f"{most} jobs {whose} already; wait until one has ended, or cancel one")
        self.of_one = of_one


class HttpJobs:
    def __init__(self, source: Source) -> None:
        self._source = source
        self._jobs: dict[str, HttpJob] = {}
        self._beginning: Counter[str] = Counter()  # by holder: they are being submitted

    def all(self) -> list[HttpJob]:
        """The newest first."""
        return list(reversed(self._jobs.values()))

    def of(self, holder: str) -> list[HttpJob]:
        """Those that a holder has submitted, the newest first."""
        return [each for each in self.all() if each.holder == holder]

    def get(self, job_id: str, holder: str = "") -> HttpJob | None:
        """None also for a job that another holder has submitted."""
        job = self._jobs.get(job_id)
        return job if job is not None and job.holder == holder else None

    async def submit(
        self,
        specs: Sequence[ProcessSpec],
        labels: Sequence[str],
        name: str,
        options: Mapping[str, Any],
        holder: str = "",
    ) -> HttpJob:
        """Raises InvalidInput, TooManyJobs."""
        self._check_room(holder)
        with counted(self._beginning, holder):
            begun = await self._source.submit(specs, labels, name, options)
        job = HttpJob(begun, labels, holder, options.get("on_behalf", b""))
        self._jobs[job.job_id] = job
        ended = deque(each for each in self._jobs.values() if each.is_over)
        tasks = sum(len(each.labels) for each in ended)
        while len(ended) > MAX_ENDED or tasks > MAX_ENDED_TASKS:
            old = ended.popleft()
            tasks -= len(old.labels)
            del self._jobs[old.job_id]
        return job

    def _check_room(self, holder: str) -> None:
        running = self._beginning + Counter(
            each.holder for each in self._jobs.values() if not each.is_over
        )
        if holder and running[holder] >= MAX_OF_ONE:
            raise TooManyJobs(MAX_OF_ONE, of_one=True)
        if running.total() >= MAX_RUNNING:
            raise TooManyJobs(MAX_RUNNING, of_one=False)

    async def end(self) -> None:
        await cancelled(*(each.following for each in self._jobs.values()))
