"""Files in which people say what they need become lines of requirements."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from formation_p2p.command.script import script_of, with_header
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.environments.prepare import with_environment
from formation_p2p.environments.requirements import Read, python_for, read_env, script_env
from formation_p2p.environments.settings import EnvironmentSettings, configured_index
from formation_p2p.environments.uv import uv_program
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.machine.pythons import own_name
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.environment import Env, Environment
from tests.support.packages import an_index, wheel

HASH = "0a" * 32
Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write


def test_requirements_are_read_as_pip_reads_them(write: Write) -> None:
    write("more.txt", "scipy\n")
    path = write(
        "requirements.txt",
        "# what we need\n"
        "numpy >= 2  # but not 3\n\n"
        "-r more.txt\n"
        "--extra-index-url https://example.org/simple\n"
        f"six==1.16.0 \\\n    --hash=sha256:{HASH} \\\n    --hash=sha256:{HASH}\n",
    )
    assert read_env(Env(path)) == Read(
        ("numpy >= 2", "scipy", f"six==1.16.0      --hash=sha256:{HASH}      --hash=sha256:{HASH}"),
        indexes=("https://example.org/simple",),
    )
    Environment(read_env(Env(path)).lines)


@pytest.mark.parametrize("name", ["requirements.txt", "pyproject.toml"])
def test_a_mark_of_the_byte_order_is_no_part_of_a_file(write: Write, name: str) -> None:
    text = "six\n" if name.endswith(".txt") else '[project]\ndependencies = ["six"]\n'
    assert read_env(Env(write(name, "\ufeff" + text))).lines == ("six",)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("requirements.txt", "-e .\n", "is not for other machines"),
        ("requirements.txt", "--no-binary :all:\n", "is an option that workers do not take"),
        ("requirements.txt", "-c pins.txt\n", "constraints are not read; have both in one file"),
        ("requirements.txt", "--constraint=pins.txt\n", "uv pip compile requirements.txt -o"),
        ("requirements.txt", "-r requirements.txt\n", "names files that name files"),
        ("pyproject.toml", "[project]\ndynamic = ['dependencies']\n", "leaves its dependencies"),
        ("pyproject.toml", "project = 1\n", "is not a table"),
        ("pyproject.toml", "[project]\ndependencies = 'x'\n", "is not a list of texts"),
        ("pyproject.toml", "[project\n", "is not TOML"),
        ("pylock.toml", "[[packages]]\nname = 'x'\nvcs = {}\n", "comes from no package index"),
        ("uv.lock", "version = 'x'\n", "uv cannot read"),
        ("packages.yaml", "numpy\n", "is no requirements.txt"),
    ],
)
def test_what_others_cannot_have_is_refused(
    write: Write, name: str, text: str, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read_env(Env(write(name, text)))


def test_a_file_that_is_not_there_is_an_error_of_this_machine(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="cannot be read"):
        read_env(Env(tmp_path / "requirements.txt"))


def test_a_project_names_its_packages_and_its_python(write: Write) -> None:
    path = write(
        "pyproject.toml",
        '[project]\nname = "x"\nrequires-python = ">=3.12"\ndependencies = ["numpy>=2"]\n',
    )
    assert read_env(Env(path)) == Read(("numpy>=2",), ">=3.12")


def test_a_lock_has_versions_and_hashes(write: Write) -> None:
    path = write(
        "pylock.toml",
        f"""
        lock-version = "1.0"
        requires-python = ">=3.11"
        [[packages]]
        name = "six"
        version = "1.16.0"
        marker = "python_version >= '3.11'"
        sdist = {{ name = "six-1.16.0.tar.gz", hashes = {{ sha256 = "{HASH}" }} }}
        wheels = [{{ name = "six-1.16.0-py3-none-any.whl", hashes = {{ sha256 = "{HASH}" }} }}]
        [[packages]]
        name = "mine"
        directory = {{ path = ".", editable = true }}
        """,
    )
    hashes = f" --hash=sha256:{HASH}" * 2
    read = read_env(Env(path))
    assert read == Read((f"six==1.16.0 ; python_version >= '3.11'{hashes}",), ">=3.11")
    Environment(read.lines)


def test_the_lock_of_uv_is_read_by_uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with an_index() as index:
        index.add(wheel("greet", "1.0", {"greet.py": ""}))
        (tmp_path / "pyproject.toml").write_text(
            '[project]\nname = "mine"\nversion = "1"\nrequires-python = ">=3.11"\n'
            'dependencies = ["greet"]\n'
        )
        lock = (uv_program(), "lock", "--no-config", "--default-index", index.url)
        monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
        subprocess.run(lock, cwd=tmp_path, check=True, capture_output=True)
    read = read_env(Env(tmp_path / "uv.lock"))
    assert read.python == ">=3.11"
    assert [line.partition(" ")[0] for line in read.lines] == ["greet==1.0"]
    assert "--hash=sha256:" in read.lines[0]
    Environment(read.lines)


SCRIPT = """#!/usr/bin/env python3
# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "rich",
# ]
# ///
import rich
"""


def test_the_header_of_a_script_names_its_packages(write: Write) -> None:
    assert script_env(SCRIPT) == Read(("rich",), ">=3.11")
    assert script_env("print()\n") is None
    with pytest.raises(InvalidInput, match="two"):
        script_env(SCRIPT + SCRIPT)
    script = Path(write("show.py", SCRIPT))
    assert script_of([str(script), "-v"], []) == 0
    assert script_of(["python", str(script), "-v"], []) == 1
    assert script_of(["python3.12", str(script)], []) == 1
    assert script_of([str(script)], [script]) is None
    assert script_of(["python", str(script)], [script]) is None
    for argv in (["elsewhere.py"], [], ["python"], ["python", "-v"], ["pythonic", str(script)]):
        assert script_of(argv, []) is None
    options = with_header(script, TaskOptions())
    assert options.env == Env(["rich"])
    assert options.needs.python == own_name()
    said = TaskOptions(env=Env(["numpy"]))
    assert with_header(script, said) is said


@pytest.mark.parametrize(
    ("wanted", "asked", "chosen"),
    [
        ("", "", ""),
        ("", "cpython-3.9", "cpython-3.9"),
        (">=3.11", "", own_name()),
        (">=3.40", "", "cpython-3.40"),
        (">3.40.2,<3.42", "", "cpython-3.40"),
        ("==3.40.*", "", "cpython-3.40"),
        ("~=3.40.1", "", "cpython-3.40"),
        ("~=3.40", "", "cpython-3.40"),
        (">=3.40, !=3.40.*", "", "cpython-3.41"),
        ("<=3.9", "", "cpython-3.8"),
        ("<3.9.2,>=3.9", "", "cpython-3.9"),
        (">=3", "", own_name()),
        (">=3.11", "cpython-3.12", "cpython-3.12"),
    ],
)
def test_a_version_is_chosen_that_the_file_wants(wanted: str, asked: str, chosen: str) -> None:
    assert python_for(wanted, asked) == chosen


@pytest.mark.parametrize(
    ("wanted", "asked", "problem"),
    [
        (">=3.12", "cpython-3.11", "wants >=3.12"),
        (">=2.7", "", "is not such as"),
        ("<3.1", "", "names no version"),
    ],
)
def test_a_version_that_no_task_can_have(wanted: str, asked: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        python_for(wanted, asked)


def test_the_environment_of_a_job_is_part_of_what_its_tasks_need(tmp_path: Path) -> None:
    options = TaskOptions(env=Env(["numpy"]), needs=Requirements(python="cpython-3.12"))

    def put(path: Path) -> None:
        raise AssertionError(f"{path} is not sent")

    made = with_environment(options, tmp_path, put)  # type: ignore[arg-type]  # it is not called
    assert made.env == Environment(("numpy",))
    assert made.needs.environment == Environment(("numpy",)).name("cpython-3.12")
    assert with_environment(made, tmp_path, put) is made  # type: ignore[arg-type]


# -- the settings of a worker ---------------------------------------------------------------------


def test_the_index_is_that_of_pip_by_default(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_INDEX_URL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    file = write("pip.conf", "[global]\nindex-url = https://one.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", file)
    assert configured_index() == "https://one.example/simple"
    write("pip.conf", "[install]\nINDEX_URL = https://three.example/simple\n")
    assert configured_index() == "https://three.example/simple"
    write("pip.conf", "index-url\n")
    assert configured_index() == "https://pypi.org/simple"
    monkeypatch.setenv("PIP_INDEX_URL", "https://two.example/simple")
    assert EnvironmentSettings().own_indexes == ("https://two.example/simple",)
    assert EnvironmentSettings(()).own_indexes == ()


def test_what_a_worker_builds_from_sources() -> None:
    plain = EnvironmentSettings(("https://example.org/simple",))
    assert plain.builds_sources(sandboxed=True)
    assert not plain.builds_sources(sandboxed=False)
    assert EnvironmentSettings((), sources=True).builds_sources(sandboxed=False)


@pytest.mark.parametrize(
    "settings",
    [
        {"indexes": ("example.org",)},
        {"indexes": ("https://example.org",) * 9},
        {"disk_bytes": 1},
        {"build_s": 0.0},
    ],
)
def test_settings_have_ranges(settings: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        EnvironmentSettings(**settings)  # type: ignore[arg-type]
