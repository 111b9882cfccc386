"""Tasks bring the packages that they need."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from formation_p2p import (
    Env,
    EnvironmentSettings,
    ProcessResult,
    ProcessSpec,
    TaskPrinted,
    Unplaceable,
)
from formation_p2p.machine.pythons import own_name
from formation_p2p.workload.core.environment import Environment
from tests.support.network import SmallNetwork, small_network
from tests.support.packages import Index, an_index, wheel
from tests.support.waiting import until

NEEDS = "cpu=0.5,memory=256MiB"
GREET = wheel(
    "greet",
    "1.0",
    {
        "greet.py": "def hello(): return 'hello'\ndef main(): print('said', hello())\n",
        "greet-1.0.dist-info/entry_points.txt": "[console_scripts]\ngreet = greet:main\n",
    },
)


# Of which no environment is built before the test that names them builds one.
COLD, SHOWN, SLOW = (wheel(name, "1.0", {f"{name}.py": ""}) for name in ("cold", "shown", "slow"))

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture(scope="module")
def index() -> Iterator[Index]:
    with an_index() as index:
        for each in (GREET, COLD, SHOWN, SLOW):
            index.add(each)
        yield index


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def network(
    tmp_path_factory: pytest.TempPathFactory, index: Index
) -> AsyncIterator[SmallNetwork]:
    settings, folder = EnvironmentSettings((index.url,)), tmp_path_factory.mktemp("environments")
    async with small_network(folder, environments=settings) as network:
        yield network


def _greeter() -> Callable[[str], str]:
    """Which goes by value: this module needs packages that the environments here lack."""

    def call(name: str) -> str:
        import greet  # type: ignore[import-not-found]  # it is made here

        return f"{greet.hello()}, {name}"

    return call


greet = _greeter()


async def test_functions_find_their_packages_and_so_does_an_executor(
    network: SmallNetwork, index: Index
) -> None:
    env = Env(requirements=["greet"])
    said = await network.bob.map(greet, ["ann", "ben"], env=env, needs=NEEDS)
    assert said == ["hello, ann", "hello, ben"]
    asked = len(index.asked)
    with network.bob.executor(env=["greet"], needs=NEEDS) as executor:
        assert executor.submit(greet, "cat").result() == "hello, cat"
    assert len(index.asked) == asked

    async def announced() -> bool:
        (worker,) = await network.bob.workers()
        return Environment(("greet",)).name(own_name()) in worker.environments

    await until(announced)


async def test_processes_find_their_programs_first(network: SmallNetwork, tmp_path: Path) -> None:
    listed = tmp_path / "requirements.txt"
    listed.write_text("# what it needs\ngreet >= 1.0  # and no more\n")
    done = await network.bob.run(["greet"], env=str(listed), needs=NEEDS)
    assert done.stdout_tail == b"said hello\n"
    spec = ProcessSpec(("python", "-c", "import greet, sys; print(greet.hello(), sys.prefix)"))
    job = await network.bob.submit([spec, spec], env=["greet"], needs=NEEDS)
    results = [ProcessResult.decode(each.result).stdout_tail for each in await job]
    assert results[0] == results[1]
    assert results[0].startswith(b"hello ")


async def test_what_is_installed_where_is_explained_before_anything_runs(
    network: SmallNetwork,
) -> None:
    bob, env = network.bob, Env(["cold"])
    cold = await bob.explain(NEEDS, env=env, function=len)
    assert not cold.is_warm(cold.ranked[0])
    assert "installed on none; 1 of 1 workers would install them" in str(cold)
    await bob.map(len, ["ann"], env=env, needs=NEEDS)

    async def warm() -> bool:
        told = await bob.explain(NEEDS, env=env, function=len)
        return told.is_warm(told.ranked[0])

    await until(warm)
    ((worker, refusal),) = (
        await bob.explain(NEEDS, env=Env(["greet"], python="3.9"), function=len)
    ).rejected
    assert worker == network.alice.peer_id
    assert str(refusal).startswith("python: needs cpython-3.9, has ")


async def test_a_worker_without_uv_gets_no_task_that_brings_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("formation_p2p.api.lending.can_install", lambda: False)
    async with small_network(tmp_path) as network:
        with pytest.raises(Unplaceable, match=r"formation_p2p\[environments\]"):
            await network.bob.run(["greet"], env=["greet"], needs=NEEDS)
        assert (await network.bob.run(["true"], needs=NEEDS)).exit_code == 0


async def test_what_uv_prints_reaches_the_submitter(network: SmallNetwork) -> None:
    job = await network.bob.submit(ProcessSpec(("true",)), env=["shown"], needs=NEEDS)
    printed = b"".join(
        [event.data async for event in job.events() if isinstance(event, TaskPrinted)]
    )
    assert b"building environment" in printed
    assert b"+ shown==1.0" in printed


async def test_wheels_travel_to_a_worker_without_an_index(
    tmp_path: Path, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    async with small_network(tmp_path, environments=EnvironmentSettings(())) as network:
        env = Env(["greet"], wheels="ship")
        assert await network.bob.map(greet, ["ann"], env=env, needs=NEEDS) == ["hello, ann"]
        with pytest.raises(Unplaceable, match='wheels="ship"'):
            await network.bob.map(greet, ["ann"], env=["greet"], needs=NEEDS)


async def test_a_job_that_is_cancelled_while_it_builds_ends(
    network: SmallNetwork, index: Index
) -> None:
    index.hangs.add("slow")
    job = await network.bob.submit(ProcessSpec(("true",)), env=["slow"], needs=NEEDS)
    async for event in job.events():
        if isinstance(event, TaskPrinted):
            job.cancel()
    assert [each.status for each in await job] == ["cancelled"]
    index.hangs.clear()
    assert await network.bob.map(len, ["ann"], env=["slow"], needs=NEEDS) == [3]
