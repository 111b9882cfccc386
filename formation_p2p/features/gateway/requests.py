"""The requests that a gateway has served lately, for people."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass
from typing import Final

# At 100 requests a second, the last ten seconds; 200 KiB.
MAX_REQUESTS: Final = 1000
# Whose requests are counted, each: all that a network of 1,000 workers has.
MAX_REPLICAS: Final = 1024
# What is shown of a path. Its query is not kept: it may hold secrets.
MAX_PATH_CHARS: Final = 120
# What is kept: requests to services, to jobs, and of workers; of those that only read, the first.
_SERVICE: Final = "/service/"
_JOBS: Final = "/api/jobs"
_KEPT: Final = (_SERVICE, _JOBS, "/api/worker/")


@dataclass(frozen=True, slots=True)
class Served:
    """`holder` made the token of it; empty for none, and on loopback."""

    number: int
    unix_s: float
    method: str
    path: str
    status: int
    ms: float
    replica: str
    holder: str

    def shown_to(self, holder: str) -> dict[str, str | float]:
        """As JSON. To others than its holder, a path tells which service it is for, or that it is
        for a job: what follows may say what was looked for, and a job's id is its holder's."""
        return {
            "number": self.number,
            "unix_s": self.unix_s,
            "method": self.method,
            "path": self.path if self.holder == holder else _without_details(self.path),
            "status": self.status,
            "ms": self.ms,
            "replica": self.replica,
        }


class RequestLog:
    """`by_replica` counts what each replica has answered."""

    def __init__(self) -> None:
        self.latest: deque[Served] = deque(maxlen=MAX_REQUESTS)
        self.total = 0
        self.open = 0
        self.by_replica: Counter[str] = Counter()
        self.by_class: Counter[str] = Counter({f"{n}xx": 0 for n in range(1, 6)})

    def served(
        self,
        unix_s: float,
        method: str,
        path: str,
        status: int,
        took_s: float,
        replica: str,
        holder: str,
    ) -> None:
        """Counts all, and keeps those of programs: not what the page reads for itself."""
        self.total += 1
        self.by_class[f"{status // 100}xx"] += 1
        if replica and (replica in self.by_replica or len(self.by_replica) < MAX_REPLICAS):
            self.by_replica[replica] += 1
        if not path.startswith(_KEPT) or (method == "GET" and not path.startswith(_SERVICE)):
            return
        ms = round(took_s * 1000, 1)
        shown = path[:MAX_PATH_CHARS]
        served = Served(self.total, unix_s, method, shown, status, ms, replica, holder)
        self.latest.append(served)


def _without_details(path: str) -> str:
    if path.startswith(_JOBS):
        return _JOBS
    if path.startswith(_SERVICE):
        service = path.removeprefix(_SERVICE).partition("/")[0]
        return f"{_SERVICE}{service}/"
    return path
