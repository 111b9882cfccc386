"""What a person writes of packages, and what travels."""

from pathlib import Path
from typing import Any

import cbor2
import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.environment import (
    ENVIRONMENT_CHARS,
    check_environment,
    check_prepared,
    packages_of,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import CallKwargs, TaskOptions, options_of
from formation_p2p.workload.core.blob import RAW, Blob, Cid
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.environment import (
    MAX_ENVIRONMENT_BYTES,
    MAX_INDEXES,
    MAX_REQUIREMENTS,
    MAX_WHEELS,
    Env,
    Environment,
    env_of,
)
from formation_p2p.workload.core.inputs_from import emptied
from formation_p2p.workload.core.plan import plan_of, tasks_of
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec, WasmSpec
from formation_p2p.workload.core.work import PythonCall, Task, Work
from tests.support.documents import block
from tests.support.stories import ALICE

WHEEL = Blob(Cid(RAW, b"w" * 32), 7)
HASH = f"--hash=sha256:{'0a' * 32}"
NUMPY = Environment(("numpy>=2",))


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "scikit-learn==1.7",
        "requests[security,socks] >= 2.8.1, == 2.8.*",
        "pywin32 ; sys_platform == 'win32' and python_version < \"3.12\"",
        f"six==1.16.0 {HASH} {HASH}",
        "  name ~= 1.0 ",
        "zope.interface (>3.0)",
        "zope.interface ( >3.0, !=3.1.* , )",
        "torch===2.1+cu121,==1!2.0.post1,<3-1",
    ],
)
def test_lines_of_a_requirements_file_name_packages(line: str) -> None:
    assert Env([line]).requirements == (line.strip(),)
    assert Environment((line,)).requirements == (line.strip(),)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-r other.txt",
        "-e .",
        "--index-url=https://example.org",
        "./folder",
        "/etc/passwd",
        "name @ https://example.org/x.whl",
        "git+https://example.org/x",
        "numpy\n-r /etc/passwd",
        "numpy --hash=md5:00",
        "numpy --no-binary :all:",
        "tabulate=0.9",
        "numpy==",
        "numpy=>2",
        "numpy>=2 <3",
        "numpy>=2,,<3",
        "x" * 200,
        7,
        None,
    ],
)
def test_nothing_else_gets_to_uv(line: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a requirement"):
        Env([line])
    encoded = cbor2.dumps({"requirements": [line], "indexes": [], "wheels": []})
    with pytest.raises(InvalidInput):
        Environment.decode(encoded)


@pytest.mark.parametrize(
    "line",
    [
        "numpy",
        "numpy [one, two] >=2, <3 ; python_version >= '3.9' and os_name == 'posix'",
        "numpy (>=2)",
        "numpy>=2" + " " * 400 + "; python_version >= '3.9'" + " " * 2000 + HASH,
        f"numpy==2.0 {HASH} {HASH}",
        f"numpy {HASH}",
        f"numpy [one] {HASH}",
        f"numpy==2.0 ; os_name == 'posix' {HASH}\t{HASH}",
    ],
)
def test_requirements_with_all_their_parts(line: str) -> None:
    assert Env([line]).requirements == (line,)


@pytest.mark.parametrize(
    "line",
    [
        f"numpy{HASH}",
        f"numpy==2.0{HASH}",
        f"numpy {HASH}{HASH}",
        f"numpy {HASH}0",
        "numpy ==2.0 --hash=0",
        # A stranger's: as many ways to split it as there are.
        "a" + " " * 5000 + "<" + " " * 5000 + ";" + " " * 5000 + "\x01",
        "a<" + " " * 256 + ";" + " " * 16_000 + "\x01",
        "a;" + "--hash" * 2000,
    ],
)
def test_what_looks_like_a_requirement_is_refused_at_once(line: str) -> None:
    """The last ones took hours, in the node's own thread."""
    with pytest.raises(InvalidInput, match="is not a requirement"):
        Env([line])


def test_an_env_is_written_in_several_ways() -> None:
    given = Env(["numpy"])
    assert env_of(given) is given
    assert env_of(["numpy"]) == env_of(iter(["numpy"])) == env_of({"requirements": ["numpy"]})
    assert env_of("requirements.txt") == env_of(Path("requirements.txt"))
    assert env_of({"requirements": "uv.lock", "python": "3.12"}).python == "3.12"
    assert Env("uv.lock", indexes="https://example.org/simple").indexes == (
        "https://example.org/simple",
    )


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"requirements": ""}, "neither a list"),
        ({"requirements": 7}, "neither a list"),
        ({"requirements": ["x"] * (MAX_REQUIREMENTS + 1)}, "at most"),
        ({"requirements": ["x"], "python": "three"}, "is not a version"),
        ({"requirements": ["x"], "wheels": "borrow"}, "neither index nor ship"),
        ({"requirements": ["x"], "platform": "linux-aarch64-gnu"}, 'add wheels="ship"'),
        ({"requirements": ["x"], "wheels": "ship", "platform": ["linux"]}, "is not a text"),
        ({"requirements": ["x"], "indexes": ["ftp://x"]}, "is not an https address"),
        ({"requirements": ["x"], "indexes": ["https://x"] * (MAX_INDEXES + 1)}, "more than"),
        ({"requirement": ["x"]}, "is not a field"),
    ],
)
def test_what_an_env_is_not(fields: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        env_of(fields)


def test_an_environment_is_read_back_and_its_name_tells_it_from_others() -> None:
    shipped = Environment(("numpy==2.0",), wheels=(("numpy-2.0-py3-none-any.whl", WHEEL),))
    asking = Environment(("numpy>=2",), indexes=("https://example.org/simple",))
    for each in (NUMPY, shipped, asking):
        assert Environment.decode(each.encode()) == each
        check_environment(each.name(""))
    names = {each.name(python) for each in (NUMPY, shipped, asking) for python in ("", "any")}
    assert len(names) == 6
    elsewhere = Environment(
        shipped.requirements, wheels=(("numpy-2.0-py3-none-any.whl", Blob(WHEEL.cid, 7, (ALICE,))),)
    )
    assert elsewhere.name("") == shipped.name("")


@pytest.mark.parametrize(
    ("wheels", "problem"),
    [
        ((("../x.whl", WHEEL),), "is not the name of a wheel"),
        (((".x.whl", WHEEL),), "is not the name of a wheel"),
        (((7, WHEEL),), "is not the name of a wheel"),
        ((("x-1-py3-none-any.whl", WHEEL),) * 2, "is given twice"),
        ((("x-1-py3-none-any.whl", WHEEL),) * (MAX_WHEELS + 1), "more than"),
    ],
)
def test_wheels_have_plain_names(wheels: Any, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        Environment(("x",), wheels=wheels)


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"\xff",
        cbor2.dumps([]),
        cbor2.dumps({"requirements": ["x"], "indexes": []}),
        cbor2.dumps({"requirements": ["x"], "indexes": [], "wheels": [], "more": 1}),
        cbor2.dumps({"requirements": ["x"], "indexes": [], "wheels": [["x"]]}),
        cbor2.dumps({"requirements": ["x"], "indexes": [], "wheels": [["x-1.whl", 7]]}),
        b"\0" * (MAX_ENVIRONMENT_BYTES + 1),
    ],
)
def test_what_a_stranger_sends_is_refused(encoded: bytes) -> None:
    with pytest.raises(InvalidInput):
        Environment.decode(encoded)


def test_one_that_is_too_large_does_not_travel() -> None:
    line = f"x==1{f' {HASH}' * 100}"
    with pytest.raises(InvalidInput, match="leave packages out"):
        Environment((line,) * 200).encode()


@pytest.mark.parametrize(
    ("prepared", "packages"),
    [("", ""), ("4f1c0a9b7d2e", "4f1c0a9b7d2e"), ("4f1c0a9b7d2e.09", "4f1c0a9b7d2e"), (".09", "")],
)
def test_what_a_task_asks_for_names_its_packages(prepared: str, packages: str) -> None:
    check_prepared(prepared)
    assert packages_of(prepared) == packages
    assert Requirements(environment=prepared).environment == prepared


@pytest.mark.parametrize("name", [7, "x", "4F1C0A9B7D2E", "4f1c0a9b7d2e.", "4f1c0a9b7d2e.x"])
def test_names_have_a_form(name: Any) -> None:
    with pytest.raises(InvalidInput):
        check_prepared(name)
    with pytest.raises(InvalidInput, match=f"is not {ENVIRONMENT_CHARS} hexadecimal digits"):
        check_environment(name)


def test_the_python_of_an_env_is_what_tasks_ask_for() -> None:
    options = options_of({"env": Env(["x"], python="3.12")})
    assert options.needs.python == "cpython-3.12"
    assert options_of({"env": None}).env is None
    assert options_of({"env": NUMPY}, takes=CallKwargs, call="map").env == NUMPY
    assert options_of({"env": Env(["x"], python="3.12"), "needs": "python=3.12"}).env is not None
    with pytest.raises(InvalidInput, match="leave one of them out"):
        options_of({"env": Env(["x"], python="3.12"), "needs": "python=3.11"})
    with pytest.raises(InvalidInput, match="env"):
        TaskOptions(env="requirements.txt")  # type: ignore[arg-type]


def test_the_environment_of_a_job_is_not_kept_with_its_options() -> None:
    options = TaskOptions(env=NUMPY)
    assert TaskOptions.unpack(options.pack()) == TaskOptions()


def test_tasks_carry_the_environment_once_for_all() -> None:
    context = CallContext("cpython-3.11", b"a pickle")
    call = PythonCall(context.encode(), b"arguments", python="cpython-3.11", cloudpickle=3)
    needs = Requirements()
    tasks, _ = tasks_of(
        plan_of([ProcessSpec(("a",)), ProcessSpec(("b",)), call, call]),
        "job",
        needs,
        None,
        NUMPY,
        memory_given=True,
    )
    first, second, third, fourth = tasks
    assert first.shared is second.shared
    assert Environment.decode(first.shared) == NUMPY
    assert third.shared is fourth.shared
    assert Environment.decode(CallContext.decode(third.shared).environment) == NUMPY
    assert first.needs.environment == NUMPY.name("")
    assert third.needs.environment == NUMPY.name("cpython-3.11")
    with pytest.raises(InvalidInput, match="container tasks bring their packages themselves"):
        tasks_of(
            plan_of(ContainerSpec("alpine", ProcessSpec(("a",)))),
            "job",
            needs,
            None,
            NUMPY,
            memory_given=True,
        )


def test_the_first_example_of_the_document_is_for_callers_of_any_version() -> None:
    """A function of `__main__` runs with the version of its caller alone."""
    (line, _) = block("docs/how-to/packages.md", "python", "env = Env(").text.splitlines()
    env: Env = eval(line.removeprefix("env = "), {"Env": Env})
    assert (env.requirements, env.python) == (("scikit-learn==1.7",), "")


# What is kept of tasks that are over, when their files travel on to others.

LARGE = ProcessSpec(("wc", "a.txt"), files_in={"a.txt": b"a" * 1000}, stdin=b"b" * 1000)
SMALL = ProcessSpec(("wc", "a.txt"))
MODULE = b"\0asm"


def task_of(work: Work, payload: bytes | None = None) -> Task:
    needs = Requirements(driver=work.driver)
    encoded = work.encode() if payload is None else payload
    return Task("job/0", needs, encoded, shared=getattr(work, "shared", b""))


@pytest.mark.parametrize(
    ("work", "left"),
    [
        (LARGE, SMALL),
        (ContainerSpec("alpine", LARGE), ContainerSpec("alpine", SMALL)),
        (WasmSpec(MODULE, LARGE), WasmSpec(MODULE, SMALL)),
    ],
)
def test_a_process_that_is_over_is_kept_without_what_came_with_it(work: Work, left: Work) -> None:
    assert emptied(task_of(work)) == left.encode()


def test_nothing_is_kept_of_a_call_or_of_what_cannot_be_read() -> None:
    assert emptied(task_of(PythonCall(b"function", b"arguments"))) == b""
    assert emptied(task_of(LARGE, b"not a process")) == b""
