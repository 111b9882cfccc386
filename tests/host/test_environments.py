"""Environments are built by uv, in the sandbox, from an index on the loopback interface."""

import hashlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from textwrap import dedent
from typing import cast

import psutil
import pytest
import trio
import trio.testing

from formation_p2p.content.core.fetch import Manifest
from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB, MIB
from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.drivers.driver import BlobAccess, Stream
from formation_p2p.drivers.environment_build import BuiltEnvironment, environment_for
from formation_p2p.drivers.machine import Machine
from formation_p2p.environments import compile_all
from formation_p2p.environments.cache import MAX_BUILDS, EnvironmentCache
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.environments.uv import EnvironmentFailed
from formation_p2p.machine.core.environment import MAX_WARM
from formation_p2p.machine.folders import folder_bytes
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.environment import Environment
from tests.support.drivers_world import within
from tests.support.packages import Index, an_index, holds, source, wheel
from tests.support.sandboxes import needs_sandbox
from tests.support.waiting import HANGS_S, in_trio, until

GREET = wheel("greet", "1.0", {"greet.py": "HELLO = 'hello'\n", "greet_data.txt": "x" * 4096})
SECRET = "what the node keeps for itself"


@pytest.fixture(scope="module")
def found() -> Machine:
    return Machine.found()


@pytest.fixture
def index() -> Iterator[Index]:
    with an_index() as index:
        index.add(GREET)
        yield index


@dataclass
class Builder:
    """A node's machine, and what its builds have printed."""

    machine: Machine
    cache: EnvironmentCache
    log: list[bytes] = field(default_factory=list)

    @property
    def printed(self) -> str:
        return b"".join(self.log).decode()

    @property
    def left(self) -> set[str]:
        names = {path.name for path in self.cache.root.iterdir()} - {"downloads"}
        return {name for name in names if not name.startswith("etc-")}

    async def make(self, *lines: str) -> None:
        await self.use(*lines)

    async def use(
        self,
        *lines: str,
        then: Callable[[BuiltEnvironment], Awaitable[str]] | None = None,
        owner: PeerId = UNKNOWN,
    ) -> str:
        def log(stream: Stream, data: bytes) -> None:
            self.log.append(data)

        async with environment_for(self.machine, Environment(lines), "", None, log, owner) as built:
            return "" if then is None else await then(built)

    async def refused(self, *lines: str, owner: PeerId = UNKNOWN) -> str:
        with pytest.raises(EnvironmentFailed) as caught:
            await self.use(*lines, owner=owner)
        return str(caught.value)


@pytest.fixture
def build(found: Machine, index: Index, tmp_path: Path) -> Builder:
    return builder(found, tmp_path / "home", EnvironmentSettings((index.url,)))


def builder(found: Machine, home: Path, settings: EnvironmentSettings) -> Builder:
    cache = EnvironmentCache.open(home, settings)
    around = None if found.sandbox is None else replace(found.sandbox, home=home)
    return Builder(replace(found, home=home, sandbox=around, environments=cache), cache)


async def says(built: BuiltEnvironment, program: str = "import greet; print(greet.HELLO)") -> str:
    done = await trio.run_process(
        [str(built.python), "-I", "-c", program], capture_stdout=True, capture_stderr=True
    )
    return str(done.stdout.decode().strip())


@in_trio
async def test_an_environment_is_built_once_and_has_what_was_asked_for(
    build: Builder, index: Index
) -> None:
    told: list[tuple[str, ...]] = []
    build.cache.watch(told.append)
    assert await build.use("greet==1.0", then=says) == "hello"
    assert "Installed 1 package" in build.printed
    assert list(build.cache.root.glob("*/venv/lib/*/site-packages/__pycache__/greet.*.pyc"))
    asked = len(index.asked)
    assert await build.use("greet==1.0", then=says) == "hello"
    assert len(index.asked) == asked
    (name,) = build.cache.warm()
    assert told == [(), (name,)]
    assert not any(build.cache.root.glob("*/build"))


def test_what_was_compiled_once_is_not_compiled_again(tmp_path: Path) -> None:
    kept = tmp_path / "kept"

    def compiled(place: str, source: str) -> tuple[bytes, ...]:
        lib = tmp_path / place
        (lib / "tests").mkdir(parents=True)
        (lib / "tests" / "much.py").write_text("WORK = 1\n")
        (lib / "greet.py").write_text(source)
        (lib / "other.py").write_text("for another Python(\n")
        program = (sys.executable, "-I", "-S", compile_all.__file__, str(lib), str(kept))
        subprocess.run(program, check=True, timeout=30)
        imported = "import sys; sys.path.insert(0, sys.argv[1]); import greet; print(greet.HELLO)"
        run = (sys.executable, "-I", "-S", "-c", imported, str(lib))
        said = subprocess.run(run, check=True, capture_output=True, timeout=30).stdout
        return said, *(path.read_bytes() for path in lib.glob("**/*.pyc"))

    first = compiled("first", "HELLO = 'hello'\n")
    (only,) = kept.iterdir()
    assert first[0] == b"hello\n"
    assert len(first) == 2  # one module, compiled
    # What is kept is what is used, as long as it is whole.
    only.write_bytes(only.read_bytes().replace(b"hello", b"HELLO"))
    assert compiled("damaged", "HELLO = 'hello'\n") == first
    made_ns = only.stat().st_mtime_ns
    assert compiled("second", "HELLO = 'hello'\n") == first
    assert only.stat().st_mtime_ns == made_ns
    assert compiled("changed", "HELLO = 'servus'\n")[0] == b"servus\n"
    assert len(list(kept.iterdir())) == 2


@in_trio
async def test_many_that_want_one_at_once_have_it_built_once(build: Builder) -> None:
    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(partial(build.use, "greet", then=says))
    assert build.printed.count("building environment") == 1


def test_what_was_built_is_there_for_the_next_incarnation(
    build: Builder, found: Machine, index: Index
) -> None:
    within(HANGS_S, partial(build.make, "greet"))
    name = build.cache.warm()
    half = build.cache.root / "0123456789ab-01234567"
    half.mkdir()
    home = build.cache.root.parent
    del build.cache, build.machine
    again = builder(found, home, EnvironmentSettings((index.url,)))
    assert again.cache.warm() == name
    assert not half.exists()
    within(HANGS_S, partial(again.make, "greet"))
    assert again.printed == ""


def test_a_wheel_that_lies_about_its_hash_is_refused(build: Builder, index: Index) -> None:
    index.lies[GREET[0]] = wheel("greet", "1.0", {"greet.py": "HELLO = 'boo'\n"})[1]
    assert "Hash mismatch" in trio.run(build.refused, "greet")
    wrong = f"greet==1.0 --hash=sha256:{'0' * 64}"
    index.lies.clear()
    assert "Hash mismatch" in trio.run(build.refused, wrong)
    assert build.left == set()


def test_what_cannot_be_resolved_says_so_and_is_not_tried_again_for_a_while(
    build: Builder, index: Index
) -> None:
    why = trio.run(build.refused, "greet==2.0")
    assert "there is no version of greet==2.0" in why
    assert "Using Python" not in why
    asked = len(index.asked)
    assert trio.run(build.refused, "greet==2.0") == why
    assert len(index.asked) == asked
    assert build.left == set()


def test_one_that_is_never_resolved_is_stopped(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    index.hangs.add("greet")
    build = builder(found, tmp_path / "home", EnvironmentSettings((index.url,), build_s=1.5))
    assert "uv was stopped after 1.5 s" in trio.run(build.refused, "greet")
    assert build.left == set()


BACKEND_THAT_HANGS = """
import time
def hangs(*_, **__):
    time.sleep(600)
build_wheel = hangs
"""


@needs_sandbox
@in_trio
async def test_a_package_whose_build_hangs_is_named(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    asked = f"{BACKEND_THAT_HANGS}prepare_metadata_for_build_wheel = hangs\n"
    index.add(source("built", "0.1", BACKEND_THAT_HANGS))
    index.add(source("asked", "0.1", asked, dynamic=True))
    build = builder(found, tmp_path / "home", EnvironmentSettings((index.url,), build_s=15))

    async def named(package: str, owner: PeerId) -> None:
        why = await build.refused(package, owner=owner)
        assert why.startswith("uv was stopped after 15 s")
        assert why.endswith(f"Building {package}==0.1")
        assert f"Building {package}==0.1\n" in build.printed
        assert "DEBUG" not in why + build.printed

    async with trio.open_nursery() as nursery:
        nursery.start_soon(named, "built", PeerId("first"))
        nursery.start_soon(named, "asked", PeerId("second"))
    assert build.left == set()


@in_trio
async def test_a_build_that_is_cancelled_leaves_nothing(build: Builder, index: Index) -> None:
    index.hangs.add("greet")
    with trio.move_on_after(1):
        await build.use("greet")
    index.hangs.clear()
    index.stopped.set()
    assert build.left == set()
    assert await build.use("greet", then=says) == "hello"


@in_trio
async def test_what_a_stopped_build_left_among_the_downloads_goes_with_the_last_that_runs(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    half = wheel("half", "1.0", {"half.bin": token_hex(2 * MIB)})
    index.add(half)
    index.stalls.add(half[0])
    index.hangs.add("other")
    build = builder(found, tmp_path / "home", EnvironmentSettings((index.url,)))

    def left() -> list[str]:
        walks = map(os.walk, build.cache.downloads.glob(".tmp*"))  # uv changes them meanwhile
        return [name for walk in walks for _, folders, files in walk for name in (*folders, *files)]

    async with trio.open_nursery() as others:
        others.start_soon(partial(build.use, "other", owner=PeerId("another")))
        await until(lambda: "other" in index.asked)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(build.use, "half")
            await until(left)
            nursery.cancel_scope.cancel()
        assert left()
        others.cancel_scope.cancel()
    assert not list(build.cache.downloads.glob(".tmp*"))
    (build.cache.downloads / ".tmpOfACrash" / "half").mkdir(parents=True)
    home = build.cache.root.parent
    del build.cache, build.machine
    again = builder(found, home, EnvironmentSettings((index.url,)))
    assert not list(again.cache.downloads.glob(".tmp*"))


def test_one_that_is_too_large_is_refused(found: Machine, index: Index, tmp_path: Path) -> None:
    index.add(wheel("heavy", "1.0", {"heavy.py": "#" * (24 * MIB)}))
    build = builder(
        found, tmp_path / "home", EnvironmentSettings((index.url,), disk_bytes=16 * MIB)
    )
    why = trio.run(build.refused, "heavy")
    assert "16" in why
    assert "environments" in why or "--env-disk" in why
    assert build.left == set()
    within(HANGS_S, partial(build.make, "greet"))


@in_trio
async def test_the_least_lately_used_make_room_but_not_those_in_use(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    for name in ("one", "two", "three"):
        index.add(wheel(name, "1.0", {f"{name}.bin": f"{name:6}" * MIB}))
    build = builder(
        found, tmp_path / "home", EnvironmentSettings((index.url,), disk_bytes=16 * MIB)
    )
    await build.use("one")
    await build.use("two")
    assert len(build.cache.warm()) == 2

    async def meanwhile(built: BuiltEnvironment) -> str:
        await build.use("three")
        return ""

    await build.use("one", then=meanwhile)
    kept = {key.partition("-")[0] for key in build.left}
    names = {word: Environment((word,)).name("") for word in ("one", "two", "three")}
    assert names["one"] in kept
    assert names["two"] not in kept
    assert len(kept) <= MAX_WARM


@in_trio
async def test_environments_in_use_leave_the_rest_to_others_and_take_no_more(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    for name in ("one", "two", "three", "four"):
        index.add(wheel(name, "1.0", {f"{name}.bin": f"{name:7}" * MIB}))
    build = builder(
        found, tmp_path / "home", EnvironmentSettings((index.url,), disk_bytes=16 * MIB)
    )
    root = build.cache.root

    async def beside_one(built: BuiltEnvironment) -> str:
        return await build.use("two", then=beside_both)

    async def beside_both(built: BuiltEnvironment) -> str:
        async with trio.open_nursery() as nursery:
            for name in ("three", "four"):
                nursery.start_soon(refused, name)
        return ""

    async def refused(name: str) -> None:
        why = await build.refused(name, owner=PeerId(name))
        assert "those in use leave " in why
        assert "--env-disk" in why

    await build.use("one", then=beside_one)
    assert folder_bytes(root) <= 16 * MIB
    assert len(build.cache.warm()) == 2
    await build.use("greet")
    assert folder_bytes(root) <= 16 * MIB


def test_what_a_build_that_fails_has_downloaded_makes_room(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    half = "half" * 3 * MIB
    index.add(wheel("large", "1.0", {"one.bin": half, "other.bin": half}))
    build = builder(
        found, tmp_path / "home", EnvironmentSettings((index.url,), disk_bytes=16 * MIB)
    )
    assert "--env-disk" in trio.run(build.refused, "large")
    assert folder_bytes(build.cache.root) <= 16 * MIB


SNOOPS = """
    import os, pathlib, zipfile

    def tried(do):
        try:
            return do()
        except OSError as error:
            return type(error).__name__

    def planted(path):
        pathlib.Path(path, "planted").write_text("planted")
        return "written"

    def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
        seen = [tried(pathlib.Path(path).read_text) for path in {paths!r}]
        seen += [tried(lambda: planted(path)) for path in {written!r}]
        name, info = "snoop-1.0-py3-none-any.whl", "snoop-1.0.dist-info/"
        with zipfile.ZipFile(os.path.join(wheel_directory, name), "w") as archive:
            archive.writestr("snoop.py", "SEEN = " + repr(seen))
            about = "Metadata-Version: 2.1\\nName: snoop\\nVersion: 1.0\\n"
            archive.writestr(info + "METADATA", about)
            kind = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
            archive.writestr(info + "WHEEL", kind)
            archive.writestr(info + "RECORD", "")
        return name
"""


@needs_sandbox
def test_a_package_that_is_built_sees_nothing_of_the_node(build: Builder, index: Index) -> None:
    home = build.cache.root.parent
    (home / "identity.key").write_text(SECRET)
    within(HANGS_S, partial(build.make, "greet"))
    (other,) = build.left
    written = [str(build.cache.downloads), str(build.cache.root / other / "venv"), str(home)]
    snoops = dedent(SNOOPS).format(paths=[str(home / "identity.key")], written=written)
    index.add(source("snoop", "1.0", snoops))

    async def story() -> None:
        saw = await build.use(
            "snoop", then=partial(says, program="import snoop; print(snoop.SEEN)")
        )
        assert "written" not in saw
        assert SECRET not in saw
        assert saw.count("Error") == 4

    within(HANGS_S, story)
    assert "a package has no wheel" in build.printed
    assert not any(home.rglob("planted"))
    assert not holds(build.cache.downloads, "SEEN")


REACHES = """
import glob, os, socket
def reaches(port):
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=5) and "reached"
    except OSError as error:
        return type(error).__name__
probed = [reaches({port}), repr(os.environ)]
for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
    try:
        probed.append(open(path).read())
    except OSError:
        pass
"""


@needs_sandbox
def test_code_that_is_built_reaches_the_index_alone_and_sees_no_password(
    found: Machine, index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("https_proxy", "http://ann:proxypass@127.0.0.1:9")
    index.login = "ann:indexpass"
    url = index.url.replace("//", "//ann:indexpass@")
    build = builder(found, tmp_path / "home", EnvironmentSettings((url,)))
    with socket.create_server(("127.0.0.1", 0)) as service:
        port = service.getsockname()[1]
        snoops = dedent(SNOOPS).format(paths=[], written=[])
        probe = REACHES.format(port=port) + snoops.replace("seen = [", "seen = probed + [")
        index.add(source("snoop", "1.0", probe))
        show = "import snoop; print(snoop.SEEN)"
        saw = trio.run(partial(build.use, "snoop", "greet", then=partial(says, program=show)))
        service.setblocking(False)
        with pytest.raises(BlockingIOError):
            service.accept()
    assert "ConnectionRefusedError" in saw
    assert "UV_DEFAULT_INDEX" in saw
    assert "pass" not in saw.replace("passwd", "")
    # What people read has the address of the index.
    why = trio.run(build.refused, "absent")
    assert "indexpass" not in why + build.printed
    assert "127.0.0.1:3141" not in why + build.printed


def test_the_password_of_an_index_is_in_no_command_line(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    index.login = "ann:indexpass"
    index.hangs.add("greet")
    url = index.url.replace("//", "//ann:indexpass@")
    bare = replace(found, sandbox=None)
    build = builder(bare, tmp_path / "home", EnvironmentSettings((url,)))

    def commands() -> list[str]:
        found = []
        for each in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                found.append(" ".join(each.cmdline()))
        return found

    async def story() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(build.use, "greet")
            await until(lambda: "greet" in index.asked)
            running = commands()
            assert any("uv pip install" in each for each in running)
            assert not any("indexpass" in each for each in running)
            nursery.cancel_scope.cancel()

    within(HANGS_S, story)
    index.hangs.clear()
    within(HANGS_S, partial(build.make, "greet"))


@in_trio
async def test_one_owner_has_one_built_at_a_time_and_keeps_no_other_waiting(
    build: Builder, index: Index
) -> None:
    """Nor where that wants one which the first waits to have built."""
    index.hangs |= {"one", "two"}
    async with trio.open_nursery() as nursery:
        for name in ("one", "two", "greet"):
            nursery.start_soon(partial(build.use, name, owner=PeerId("first")))
            await trio.testing.wait_all_tasks_blocked()
        await until(lambda: "one" in index.asked)
        assert await build.use("greet", then=says, owner=PeerId("second")) == "hello"
        assert "two" not in index.asked
        nursery.cancel_scope.cancel()


TELLS_ITS_LIMIT = """
import resource
raise SystemExit("at most %d bytes" % resource.getrlimit(resource.RLIMIT_DATA)[0])
"""


@needs_sandbox
def test_a_build_has_little_memory_beside_what_the_worker_lends(
    build: Builder, index: Index
) -> None:
    """uv keeps all that a package's code prints. A process may map twice what all may use."""
    index.add(source("tells", "1.0", TELLS_ITS_LIMIT))
    most = TaskLimits(2000, 2 * GIB).resource_limits["RLIMIT_DATA"]
    assert f"at most {most} bytes" in trio.run(build.refused, "tells")


EXCHANGES = """
import os
key = os.path.dirname(os.path.dirname(os.environ["UV_CACHE_DIR"]))
os.rename(key + "/venv", key + "/real")
os.symlink(key + "/real", key + "/venv")
"""


@needs_sandbox
def test_code_that_is_built_cannot_exchange_what_tasks_are_shown(
    build: Builder, index: Index
) -> None:
    index.add(source("exchanges", "1.0", EXCHANGES))
    assert "Read-only file system" in trio.run(build.refused, "exchanges")
    assert build.left == set()


PLANTS = """
import os
key = os.path.dirname(os.path.dirname(os.environ["UV_CACHE_DIR"]))
if not os.path.islink(key + "/ready"):
    os.symlink({file!r}, key + "/ready")
"""


@needs_sandbox
def test_code_that_is_built_cannot_have_the_node_write_through_a_link(
    build: Builder, index: Index, tmp_path: Path
) -> None:
    index.add(source("plants", "1.0", PLANTS.format(file=str(tmp_path / "written"))))
    assert "Read-only file system" in trio.run(build.refused, "plants")
    assert build.left == set()


def test_a_record_that_is_no_plain_file_is_neither_read_nor_written(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    """As code that was built without a sandbox may leave it."""
    file = tmp_path / "file"
    file.write_text("4096")
    ran = PLANTS.format(file=str(file)) + dedent(SNOOPS).format(paths=[], written=[])
    index.add(source("snoop", "1.0", ran))
    settings = EnvironmentSettings((index.url,), sources=True)
    build = builder(replace(found, sandbox=None), tmp_path / "home", settings)
    assert "File exists" in trio.run(build.refused, "snoop")
    root = build.cache.root
    for name in ("link", "fifo"):
        (root / name / "venv").mkdir(parents=True)
    (root / "link" / "ready").symlink_to(file)
    os.mkfifo(root / "fifo" / "ready")
    build.cache.close()
    opened: list[EnvironmentCache] = []
    # A thread that a FIFO holds for good does not keep the tests from ending.
    opens = threading.Thread(
        target=lambda: opened.append(EnvironmentCache.open(root.parent, settings)), daemon=True
    )
    opens.start()
    opens.join(HANGS_S)
    assert opened[0].warm() == ()
    assert not list(root.glob("*/ready"))
    assert file.read_text() == "4096"


def test_a_folder_that_is_not_the_one_that_was_built_is_not_shown(
    build: Builder, tmp_path: Path
) -> None:
    """As a task without a sandbox may leave it."""

    async def shown(built: BuiltEnvironment) -> str:
        assert not built.folder.is_symlink()
        return await says(built)

    def greets() -> Path:
        """Returns where its environment is."""
        trio.run(partial(build.use, "greet", then=shown))
        (venv,) = build.cache.root.glob("*/venv")
        return venv

    link = greets()
    link.rename(tmp_path / "first")
    link.symlink_to(tmp_path / "first")
    other = greets()
    other.rename(tmp_path / "second")
    other.mkdir()
    greets()
    assert build.printed.count("building environment") == 3


@needs_sandbox
def test_that_a_package_has_no_wheel_is_an_error_only_where_it_cannot_be_built(
    build: Builder, index: Index
) -> None:
    index.add(source("snoop", "1.0", dedent(SNOOPS).format(paths=[], written=[])))
    index.add(source("broken", "1.0", "raise SystemExit('no compiler')"))
    within(HANGS_S, partial(build.make, "snoop"))
    assert "error" not in build.printed
    assert "--no-build" not in build.printed
    assert "Installed 1 package" in build.printed
    assert "no compiler" in trio.run(build.refused, "broken")
    assert "has no usable wheels" in build.printed


def test_without_a_sandbox_no_code_of_packages_runs(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    index.add(source("snoop", "1.0", f"open({str(ran)!r}, 'w')\n"))
    bare = replace(found, sandbox=None)
    build = builder(bare, tmp_path / "home", EnvironmentSettings((index.url,)))
    assert "no usable wheels" in trio.run(build.refused, "snoop")
    assert not ran.exists()
    within(HANGS_S, partial(build.make, "greet"))
    willing = EnvironmentSettings((index.url,), sources=True)
    build = builder(bare, tmp_path / "other", willing)
    trio.run(build.refused, "snoop")
    assert ran.exists()


@in_trio
async def test_an_index_that_is_not_allowed_is_not_asked(build: Builder, index: Index) -> None:
    with pytest.raises(EnvironmentFailed, match="does not allow"):
        async with environment_for(
            build.machine,
            Environment(("greet",), indexes=("https://elsewhere.test/simple",)),
            "",
            None,
            lambda stream, data: None,
        ):
            pass
    assert index.asked == []


def test_a_worker_without_an_index_says_how_to_have_wheels(found: Machine, tmp_path: Path) -> None:
    build = builder(found, tmp_path / "home", EnvironmentSettings(()))
    assert 'wheels="ship"' in trio.run(build.refused, "greet")


def silent(stream: Stream, data: bytes) -> None:
    """The log of a build."""


class Wheels:
    """What peers have of the wheels, by what a reference says of them."""

    def __init__(self, *has: bytes) -> None:
        self.has = {Manifest.of(each).blob.cid: each for each in has}
        self.hangs = False

    async def fetch_ahead(self, blobs: Iterable[Blob], owner: PeerId = UNKNOWN) -> None:
        if self.hangs:
            await trio.sleep_forever()
        for blob in blobs:
            if blob.cid not in self.has:
                raise Unreachable("no source has it")

    async def copies(self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN) -> None:
        for path, blob in inputs:
            await self.fetch_ahead([blob], owner)
            path.write_bytes(self.has[blob.cid])


@in_trio
async def test_wheels_that_one_owner_does_not_hand_over_keep_no_other_waiting(
    found: Machine, tmp_path: Path
) -> None:
    """Nor do they count against the environment, which others may ask for by the same name."""
    build = builder(found, tmp_path / "home", EnvironmentSettings(()))
    name, content = GREET
    environment = Environment(("greet==1.0",), wheels=((name, Manifest.of(content).blob),))
    hanging, none, some = Wheels(), Wheels(), Wheels(content)
    hanging.hangs = True

    async def use(wheels: Wheels) -> str:
        blobs = cast("BlobAccess", wheels)
        async with environment_for(build.machine, environment, "", blobs, silent) as built:
            return await says(built)

    async with trio.open_nursery() as nursery:
        for _ in range(2 * MAX_BUILDS):
            nursery.start_soon(use, hanging)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Unreachable, match="no source has it"):
            await use(none)
        assert await use(some) == "hello"
        nursery.cancel_scope.cancel()


@in_trio
async def test_wheels_that_take_too_long_are_not_handed_over(
    found: Machine, tmp_path: Path
) -> None:
    build = builder(found, tmp_path / "home", EnvironmentSettings((), build_s=0.1))
    name, content = GREET
    environment = Environment(("greet==1.0",), wheels=((name, Manifest.of(content).blob),))
    wheels = Wheels()
    wheels.hangs = True
    blobs = cast("BlobAccess", wheels)
    with pytest.raises(Unreachable, match="did not come within"):
        async with environment_for(build.machine, environment, "", blobs, silent):
            pass


@in_trio
async def test_wheels_that_came_along_are_refused_where_they_are_not_what_was_asked_for(
    found: Machine, tmp_path: Path
) -> None:
    """By the hash of a lock, or by the name that they bear."""
    build = builder(found, tmp_path / "home", EnvironmentSettings(()))
    other = wheel("other", "2.0", {"other.py": "HELLO = 'boo'\n"})[1]
    changed = wheel("greet", "1.0", {"greet.py": "HELLO = 'boo'\n"})[1]
    locked = f"greet==1.0 --hash=sha256:{hashlib.sha256(GREET[1]).hexdigest()}"

    async def refused(line: str, content: bytes) -> str:
        wheels = ((GREET[0], Manifest.of(content).blob),)
        blobs = cast("BlobAccess", Wheels(content))
        with pytest.raises(EnvironmentFailed) as caught:
            async with environment_for(
                build.machine, Environment((line,), wheels=wheels), "", blobs, silent
            ):
                pass
        return str(caught.value)

    assert "Hash mismatch" in await refused(locked, changed)
    why = await refused("greet==1.0", other)
    assert "`other-2.0` does not start with the normalized package name: greet" in why
    assert build.left == set()


def test_a_folder_that_cannot_be_written_to_is_an_error_of_this_environment(
    build: Builder, tmp_path: Path
) -> None:
    build.cache.root.rename(tmp_path / "away")
    build.cache.root.touch()
    assert "could not be made here" in trio.run(build.refused, "greet")


def test_a_machine_without_uv_says_how_to_install_it(
    build: Builder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: "/nowhere")
    monkeypatch.setenv("PATH", "/nowhere")
    assert "pip install 'formation_p2p[environments]'" in trio.run(build.refused, "greet")


def test_a_full_disk_is_an_error_that_leaves_nothing(
    found: Machine, index: Index, tmp_path: Path
) -> None:
    """On a file system of 20 MiB."""
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(("mount", "-t", "tmpfs", "-o", "size=20m", "none", str(small))).returncode:
        pytest.skip("only root may mount")
    try:
        index.add(wheel("heavy", "1.0", {"heavy.bin": "#" * (24 * MIB)}))
        build = builder(found, small / "home", EnvironmentSettings((index.url,)))
        why = trio.run(build.refused, "heavy")
        assert "No space left on device" in why
        assert build.left == set()
        within(HANGS_S, partial(build.make, "greet"))
    finally:
        subprocess.run(("umount", "-l", str(small)), check=True)


def test_each_of_two_nodes_of_a_home_has_a_folder(tmp_path: Path) -> None:
    caches = [EnvironmentCache.open(tmp_path, EnvironmentSettings()) for _ in range(2)]
    assert {cache.root.name for cache in caches} == {"environments-0", "environments-1"}
    assert caches[0].root.stat().st_mode & 0o077 == 0
