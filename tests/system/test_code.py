"""The code of calls travels: programs of their own submit, and the worker knows nothing of them."""

import asyncio
import os
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile
from textwrap import dedent

import pytest

from formation_p2p import Home, Rights, SyncNode
from formation_p2p.machine.pythons import own_name
from tests.support.forked import Forked
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE
from tests.support.pythons import other_pythons
from tests.support.waiting import HANGS_S

MAIN = """
import sys
from formation_p2p import FormationError, SyncNode

NEEDS = "cpu=0.5,memory=64MiB"

def join(**options):
    return SyncNode.join(sys.argv[1], home=sys.argv[2], listen=(), **options)
"""


@pytest.fixture(scope="module")
def invite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a gate that works, with this Python and another."""
    home = Home(tmp_path_factory.mktemp("code") / "alice")
    home.create_network()
    with SyncNode.join(home=home.path, listen=LISTEN) as alice:
        home.add_gate(alice.addresses[0])
        alice.worker(limits=MACHINE, pythons=[own_name(), other_pythons()[0]])
        yield home.invite(Rights(int(time.time()) + 3600))


class Project:
    """A folder of a person's own, and programs run there."""

    def __init__(self, folder: Path, invite: str) -> None:
        self.folder = folder
        self.invite = invite

    def git(self, *arguments: str) -> None:
        subprocess.run(("git", *arguments), cwd=self.folder, check=True, capture_output=True)

    async def run(self, script: str, **environment: str) -> str:
        """What `main.py`, which begins as MAIN does, prints."""
        (self.folder / "main.py").write_text(MAIN + dedent(script))
        with TemporaryFile() as output, TemporaryFile() as nothing:
            files = (nothing.fileno(), output.fileno(), output.fileno())
            program = Forked(
                (self.invite, str(self.folder.parent / "home")),
                {**os.environ, **environment},
                self.folder,
                files,
                module="main",
            )
            try:
                code = await asyncio.to_thread(program.wait, HANGS_S)
            finally:
                program.kill()
            output.seek(0)
            text = output.read().decode()
        assert code == 0, text
        return text


@pytest.fixture
def project(tmp_path: Path, invite: str) -> Project:
    folder = tmp_path / "project"
    folder.mkdir()
    return Project(folder, invite)


def a_package(project: Project) -> None:
    files = {
        "shop/__init__.py": "",
        "shop/prices.py": """
            from dataclasses import dataclass
            from importlib.resources import files

            @dataclass
            class Item:
                name: str

            def price(item):
                import later
                table = (files("shop") / "data" / "prices.txt").read_text()
                return later.doubled(int(dict(x.split() for x in table.splitlines())[item.name]))
            """,
        "shop/data/prices.txt": "apple 3\npear 4\n",
        "later.py": "def doubled(n):\n    return 2 * n\n",
    }
    for name, text in files.items():
        path = project.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(dedent(text))


async def test_a_package_goes_along_with_its_data_and_what_it_imports_later(
    project: Project,
) -> None:
    a_package(project)
    printed = await project.run(
        """
        from shop.prices import Item, price
        from formation_p2p import CodeSent, python_calls, value_of

        if __name__ == "__main__":
            items = [Item("apple"), Item("pear")]
            with join() as node:
                print("map", node.map(price, items, needs=NEEDS))
                print("by value", node.map(lambda name: price(Item(name)), ["pear"], needs=NEEDS))
                with node.executor(needs=NEEDS) as pool:
                    print("executor", list(pool.map(price, items)))
                job = node.submit(python_calls(price, items), needs=NEEDS)
                first = next(job.events())
                print("submit", [value_of(each) for each in job.results()])
                print(isinstance(first, CodeSent), first.code.names, first.code.files)
        """
    )
    assert printed.splitlines() == [
        "map [6, 8]",
        "by value [8]",
        "executor [6, 8]",
        "submit [6, 8]",
        "True ('later', 'shop') 4",
    ]


async def test_another_version_of_a_module_is_never_a_stale_one(project: Project) -> None:
    printed = await project.run(
        """
        from pathlib import Path

        if __name__ == "__main__":
            sys.dont_write_bytecode = True
            new, module = Path("version.new"), Path("version.py")
            with join() as node:
                for number in (1, 2, 3):
                    new.write_text(f"def which(n):\\n    return {number} + 0 * n\\n")
                    new.replace(module)
                    import version
                    print(node.map(version.which, [1], needs=NEEDS))
                    with node.executor(needs=NEEDS) as pool:
                        print(pool.submit(version.which, 1).result())
        """
    )
    assert printed.split() == ["[1]", "1", "[2]", "2", "[3]", "3"]


async def test_a_module_that_does_not_go_along_is_named_with_the_cure(project: Project) -> None:
    a_package(project)
    printed = await project.run(
        """
        from shop.prices import Item, price

        if __name__ == "__main__":
            with join(code="main") as node:
                print(node.map(lambda n: -n, [1], needs=NEEDS))
                try:
                    node.map(price, [Item("apple")], needs=NEEDS)
                except ModuleNotFoundError as error:
                    print(error)
            with join(code=["later.py"]) as node:
                print(node.map(lambda n: __import__("later").doubled(n), [4], needs=NEEDS))
        """
    )
    assert "[-1]" in printed
    assert "No module named 'shop' on this worker" in printed
    assert "code= of Node.join" in printed
    assert "[8]" in printed


APPLICATION = """
    import sys
    from formation_p2p import Env, FormationError, Node, SyncNode
    from formation_p2p.core.units import MIB

    ENVIRONMENT = Env(["greet"])

    class Missing(FormationError):
        pass

    async def answer(node: Node | None, numbers: list[int]) -> list[int]:
        return await node.map(square, numbers)

    def square(n):
        try:
            {}[n]
        except FormationError:
            return None
        except KeyError:
            return n * n, type(Node).__name__

    def joins(n):
        SyncNode.join()
"""


async def test_a_module_that_makes_nodes_also_runs_where_this_package_is_not_installed(
    project: Project,
) -> None:
    (project.folder / "application.py").write_text(dedent(APPLICATION))
    printed = await project.run(
        f"""
        import application

        if __name__ == "__main__":
            more = dict(needs="cpu=0.5,memory=256MiB")
            with join() as node:
                for options in (more, {{"python": {other_pythons()[0]!r}, **more}}):
                    print(*node.map(application.square, [3], **options))
                try:
                    node.map(application.joins, [0], **options)
                except ModuleNotFoundError as error:
                    print(error)
        """
    )
    *squares, problem = printed.splitlines()
    assert squares == ["(9, 'type')", "(9, 'AbsentType')"]
    assert problem.startswith("join of formation_p2p is used in a call, and this worker's ")
    assert problem.endswith("use formation_p2p where you make calls, not within them")


async def test_what_main_defines_is_found_by_its_name_there(project: Project) -> None:
    """By pickle, which refers to wrappers by name, and by a pool of processes in a call."""
    printed = await project.run(
        """
        import functools, typing
        from concurrent.futures import ProcessPoolExecutor
        from multiprocessing import get_context

        UserId = typing.NewType("UserId", int)
        P = typing.ParamSpec("P")
        fork = get_context("fork")

        def passed(function: typing.Callable[P, int]) -> typing.Callable[P, int]:
            @functools.wraps(function)
            def called(*args: P.args, **kwargs: P.kwargs) -> int:
                return function(*args, **kwargs)
            return called

        @functools.lru_cache(maxsize=99)
        def fib(n):
            return n if n < 2 else fib(n - 1) + fib(n - 2)

        @functools.cache
        def tenfold(n):
            return 10 * n

        @passed
        def through(n: int) -> int:
            return tenfold(n)

        def next_id(user: UserId) -> UserId:
            return UserId(user + 1)

        class Point:
            def __init__(self, x):
                self.x = x

            @functools.lru_cache
            def double(self):
                return 2 * self.x

            @functools.cached_property
            def half(self):
                return self.x / 2

        def square(n):
            return n * n

        def x_of(point):
            return point.x

        @functools.singledispatch
        def kind_of(value):
            return "something"

        @kind_of.register
        def _(value: int):
            return "a number"

        def pooled(n):
            with fork.Pool(2) as pool:
                points = pool.map(x_of, map(Point, range(n)))
                return pool.map(square, range(n)), pool.map(fib, [5, 6]), points

        def in_processes(n):
            with ProcessPoolExecutor(2, mp_context=fork) as pool:
                return list(pool.map(square, range(n)))

        if __name__ == "__main__":
            with join() as node:
                for function in (fib, tenfold, through, next_id, kind_of, pooled, in_processes):
                    print(node.map(function, [4], needs=NEEDS)[0])
                print(node.map(functools.partial(fib), [4], needs=NEEDS)[0])
                most = lambda: fib.cache_parameters()["maxsize"]
                cached = lambda n: Point(n).double() * Point(n).half + most()
                print(node.map(cached, [4], needs=NEEDS))
                print(node.map(functools.lru_cache(lambda n: n), [4], needs=NEEDS))

                def square(n):  # as a cell of a notebook that is run again
                    return -n
                globals()["square"] = square
                square.__qualname__ = "square"
                print(node.map(in_processes, [3], needs=NEEDS))
        """
    )
    assert printed.splitlines() == [
        "3",
        "40",
        "40",
        "5",
        "a number",
        "([0, 1, 4, 9], [5, 8], [0, 1, 2, 3])",
        "[0, 1, 4, 9]",
        "3",
        "[115.0]",
        "[4]",
        "[[0, -1, -2]]",
    ]


@pytest.mark.parametrize("frames", ["", "full"])
async def test_a_traceback_has_the_frames_of_the_caller_with_their_lines(
    project: Project, frames: str
) -> None:
    (project.folder / "tables.py").write_text("def of(n):\n    return {}[n]  # in a module\n")
    printed = await project.run(
        """
        import traceback
        import tables

        def fails(n):
            return tables.of(n)  # as it is written

        if __name__ == "__main__":
            with join() as node, node.executor(attempts=1, needs=NEEDS) as pool:
                for call in (
                    lambda: node.map(fails, [1], attempts=1, needs=NEEDS),
                    lambda: list(pool.map(fails, [1])),
                    lambda: node.map(fails, [1], needs="cpu=1000"),
                ):
                    try:
                        call()
                    except (KeyError, FormationError):
                        traceback.print_exc()
        """,
        FORMATION_TRACEBACK=frames,
    )
    of_calls = (
        'in fails\n    return tables.of(n)  # as it is written\n  File "tables.py", line 2, in of\n'
        "    return {}[n]  # in a module\nKeyError: 1\n"
    )
    assert re.sub(r" +[~^]+\n", "", printed).count(of_calls) == 2
    assert "lambda: node.map(fails, [1], attempts=1, needs=NEEDS)" in printed
    assert "Unplaceable: " in printed
    assert ("formation_p2p/api" in printed) == (frames == "full")


async def test_modules_that_no_finder_finds_go_along(project: Project) -> None:
    """Of another name than their files, within a package, out of a zip, made in memory, loaded."""
    printed = await project.run(
        """
        import importlib.util, types, zipfile
        from pathlib import Path

        def load(name, path):
            spec = importlib.util.spec_from_file_location(name, path)
            module = sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return module

        text = "class Own:\\n    x = {}\\ndef which(n):\\n    return Own.x, n\\n"
        Path("plug.py").write_text(text.format(1))
        Path("package").mkdir()
        Path("package/__init__.py").write_text("")
        with zipfile.ZipFile("packed.zip", "w") as packed:
            packed.writestr("zipped.py", "import helps\\n" + text.format("helps.x"))
            packed.writestr("helps.py", "x = 4")
        sys.path.insert(0, "packed.zip")
        modules = [
            load("another_name", "plug.py"),
            load("no_package.inside", "plug.py"),
            load("package.inside", "plug.py"),
            importlib.import_module("zipped"),
        ]
        made = sys.modules["made_here"] = types.ModuleType("made_here")
        exec(text.format(5), vars(made))

        class OfADatabase:
            def create_module(self, spec):
                return None

            def exec_module(self, module):
                exec(text.format(6), vars(module))

        spec = importlib.util.spec_from_loader("loaded", OfADatabase(), origin="a database")
        loaded = sys.modules["loaded"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)

        if __name__ == "__main__":
            with join() as node:
                for module in [*modules, made, loaded]:
                    print(node.map(module.which, [1], needs=NEEDS, attempts=1))
                    print(node.map(lambda n: (module.Own.x, n), [1], needs=NEEDS, attempts=1))
        """
    )
    assert printed.splitlines() == [f"[({x}, 1)]" for x in (1, 1, 1, 1, 1, 1, 4, 4, 5, 5, 6, 6)]
