"""What calls print reaches the terminal of who called, and how far they have come."""

import asyncio
import secrets
import subprocess
import sys

import cloudpickle
import pytest

from formation_p2p import Node, ProcessSpec
from formation_p2p.api.map import Mapped
from formation_p2p.core.identity import shown_peer
from tests.support.network import LOOKS_S, SmallNetwork, runs
from tests.support.waiting import until

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = "cpu=0.5,memory=64MiB"


def says(n: int) -> int:
    print("call", n)
    print("no end", end="")
    print("oops", n, file=sys.stderr)
    return n


def prefix(small: SmallNetwork) -> str:
    return f"{shown_peer(small.alice.peer_id, small.alice.name)} | "


async def test_calls_print_here_when_asked_to(
    small: SmallNetwork, capsys: pytest.CaptureFixture[str]
) -> None:
    who = prefix(small)
    assert await small.bob.map(says, range(2), needs=SMALL) == [0, 1]
    assert capsys.readouterr() == ("", "")
    assert await small.bob.map(says, range(2), needs=SMALL, show_output=True) == [0, 1]
    out, err = capsys.readouterr()
    lines = [f"{who}call 0", f"{who}call 1", f"{who}no end", f"{who}no end"]
    assert sorted(out.splitlines()) == lines
    assert sorted(err.splitlines()) == [f"{who}oops 0", f"{who}oops 1"]
    with small.bob.executor(needs=SMALL, show_output=True) as pool:
        assert await asyncio.wrap_future(pool.submit(says, 7)) == 7
        assert capsys.readouterr().out == f"{who}call 7\n{who}no end\n", "before the result"
    job = await small.bob.submit(ProcessSpec(("echo", "hi")), needs=SMALL, show_output=True)
    await job
    assert capsys.readouterr().out == f"{who}hi\n"


async def test_prompts_show_what_calls_print_unless_told_not_to(
    small: SmallNetwork, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    await small.bob.map(says, [1], needs=SMALL)
    assert f"{prefix(small)}call 1\n" in capsys.readouterr().out
    await small.bob.map(says, [1], needs=SMALL, show_output=False)
    assert capsys.readouterr() == ("", "")


async def test_jobs_that_are_kept_print_as_well(
    small: SmallNetwork, capsys: pytest.CaptureFixture[str]
) -> None:
    state = small.folder / "jobs.db"
    async with Node.join(small.invite, home=small.folder / "dave", listen=(), state=state) as dave:
        await (await dave.submit(ProcessSpec(("echo", "hi")), needs=SMALL, show_output=True))
    assert capsys.readouterr().out == f"{prefix(small)}hi\n"


def divide(by: int) -> float:
    return 1 / by


async def test_progress_counts_to_the_end(
    small: SmallNetwork, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[tuple[int, int, int | None]] = []

    def progress(done: int, failed: int, total: int | None) -> None:
        said.append((done, failed, total))

    await small.bob.map(divide, range(1, 11), needs=SMALL, progress=progress)
    assert said[0] == (0, 0, 10)
    assert said[-1] == (10, 0, 10)
    assert said == sorted(said)
    streamed: list[tuple[int, int, int | None]] = []
    stream = small.bob.map(
        divide,
        iter(range(1, 4)),
        needs=SMALL,
        progress=lambda *numbers: streamed.append(numbers),
    )
    assert len([value async for value in stream]) == 3
    assert streamed[-1] == (3, 0, None)
    await small.bob.map(divide, [1, 2], needs=SMALL, progress=True)
    assert "formation: 2 of 2 done, 0 failed" in capsys.readouterr().err
    with pytest.raises(ZeroDivisionError):
        await small.bob.map(divide, [0], needs=SMALL, progress=True, attempts=1)
    assert "formation: 0 of 1 done, 1 failed" in capsys.readouterr().err


def waits(program: str) -> None:
    if program:
        subprocess.run(["sleep", program], check=True)


async def test_progress_is_not_told_after_a_map_has_ended(small: SmallNetwork) -> None:
    long = f"600.{secrets.randbelow(10**9)}"
    said: list[tuple[int, int, int | None]] = []

    def progress(done: int, failed: int, total: int | None) -> None:
        said.append((done, failed, total))

    mapping = asyncio.create_task(
        _of(small.bob.map(waits, [long] * 3, needs=SMALL, progress=progress))
    )
    await until(lambda: runs(long), every_s=LOOKS_S)
    mapping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await mapping
    await until(lambda: not runs(long), every_s=LOOKS_S)
    async for _ in small.bob.map(waits, ["", long, long], needs=SMALL, progress=progress):
        await until(lambda: runs(long), every_s=LOOKS_S)
        break
    await until(lambda: not runs(long), every_s=LOOKS_S)
    # What the calls that were cancelled tell, the node has told before it answers this.
    assert await small.bob.map(abs, [-1], needs=SMALL) == [1]
    assert said == [(0, 0, 3), (0, 0, 3), (1, 0, 3)]


async def _of(mapped: Mapped[None]) -> list[None]:
    return await mapped


async def test_what_ones_own_progress_raises_is_raised(small: SmallNetwork) -> None:
    def progress(done: int, failed: int, total: int | None) -> None:
        if done:
            raise LookupError("the bar is gone")

    with pytest.raises(LookupError, match="the bar is gone"):
        await small.bob.map(divide, [1, 2, 3], needs=SMALL, progress=progress)
    assert await small.bob.map(divide, [1], needs=SMALL) == [1.0]
