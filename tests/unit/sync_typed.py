"""What type checkers say of calls of `SyncNode`: `make lint` checks this file, which nothing runs.

What is wrong is told, or the comment that expects it is told of as one that ignores nothing.
"""

from collections.abc import Callable
from concurrent.futures import Future

from formation_p2p import Hardware, ProcessSpec, Reference, SyncJob, SyncNode, TaskResult
from formation_p2p.workload.core.blob import Blob


def half(n: int) -> float:
    return n / 2


node = SyncNode.join()

# What is right.
a: list[float] = node.map(half, [1, 2], needs="cpu=1", speculate=True, buffersize=5)
g: list[float] = node.map(half, [f := node.put(1)])
job: SyncJob = node.submit(ProcessSpec(("true",)), deadline_s=5.0, learn=False)
b: tuple[TaskResult, ...] = job.results()
c: TaskResult | None = job.result("x")
d: Hardware = node.worker(price_micro=3)
e: Blob = node.put("x")
t: Reference[int] = f
node.get(e, "y")
node.run(["true"], inputs={"e": e}, outputs=["f"], attempts=2)
jobs: tuple[SyncJob, ...] = node.jobs()
node.job("x").cancel()
with node.executor() as executor:
    h: Future[float] = executor.submit(half, 1)
    i: Future[float] = executor.submit(half, f)
    j: Future[int] = executor.submit(sum, node.put([1]))
    k: Future[str] = executor.submit(lambda row, n: row[n], node.put(["a"]), 0)
    half_of: Callable[[int], float] = half
    m: list[float] = node.map(half_of, [f])
o: list[float] = node.map(lambda n: n / 2, [f, f])
p: list[int] = node.map(sum, [node.put([1])])
q: list[int] = node.map(len, (node.put((n,)) for n in range(3)))
r: list[int] = node.map(lambda text: len(text), ["a"])
s: list[int] = node.map(pow, [2, 3], [5, 2])


# What is wrong.
node.map(half, ["a"])  # type: ignore[arg-type]
node.map(half, [node.put("a")])  # type: ignore[arg-type]
node.map(lambda n: n / 2, [node.put("a")])  # type: ignore[operator]
node.map(half, [1], deadline_s=5.0)  # type: ignore[call-overload]
node.submit(ProcessSpec(("true",)), atempts=2)  # type: ignore[call-arg]
node.run(["true"], timeout_s="5m")  # type: ignore[arg-type]
node.executor(learn=False)  # type: ignore[call-arg]
node.executor().submit(half, "a")  # type: ignore[call-overload]
node.executor().submit(half, node.put("a"))  # type: ignore[call-overload]


async def waits() -> None:
    await node.submit(ProcessSpec(("true",)))  # type: ignore[misc]
