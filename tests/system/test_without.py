"""The library without a feature is whole: it names nothing that is gone, and runs."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import ROOT
from tools.without import PACKAGE, features, without

# Each module is imported but for those that run by themselves, in a task's interpreter.
IMPORT_ALL = """
import importlib, pkgutil, formation_p2p
for module in pkgutil.walk_packages(formation_p2p.__path__, "formation_p2p."):
    path = module.module_finder.find_spec(module.name).origin
    if "TYPE_CHECKING = False" not in open(path).read() and "__main__" not in module.name:
        importlib.import_module(module.name)
"""
RUN = """
import sys
from formation_p2p import SyncNode
with SyncNode.join(home=sys.argv[1], listen=("/ip4/127.0.0.1/tcp/0",)) as node:
    node.worker(drivers=("python",))
    assert node.map(abs, range(-3, 0)) == [3, 2, 1]
assert not [name for name in sys.modules if name.startswith("formation_p2p.features.")]
"""
LACKING = """
import sys
class Lacking:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("dask", "distributed", "fastapi", "h11", "httpx2", "libp2p"):
            raise ImportError(name)
sys.meta_path.insert(0, Lacking())
from formation_p2p import SyncNode
with SyncNode.join(home=sys.argv[1], listen=("/ip4/127.0.0.1/tcp/0",)) as node:
    wanted = {"dask": node.dask, "gateway": node.gateway, "libp2p": lambda: node.libp2p_host(print)}
    for name, call in wanted.items():
        try:
            call()
        except ImportError as error:
            assert f"pip install 'formation_p2p[{name}]'" in str(error), error
        else:
            sys.exit(f"{name} is there")
"""


def python(folder: Path, *words: str) -> None:
    """In that copy of the library."""
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def names_that_are_gone(folder: Path) -> str:
    command = [
        "-m",
        "ruff",
        "check",
        "--select",
        "F821",
        "--output-format",
        "concise",
        "--no-cache",
    ]
    done = subprocess.run(
        [sys.executable, *command, "formation_p2p"], cwd=folder, capture_output=True, text=True
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("feature", features())
def test_without_a_feature_nothing_names_it(feature: str, tmp_path: Path) -> None:
    gone = without([feature], tmp_path, PACKAGE)
    assert feature in gone
    assert not (tmp_path / "formation_p2p" / "features" / feature).exists()
    assert names_that_are_gone(tmp_path) == ""
    python(tmp_path, "-c", "import formation_p2p.public, formation_p2p.command.main")


def test_the_kernel_alone_runs_a_job(tmp_path: Path) -> None:
    copy, home = tmp_path / "copy", tmp_path / "home"
    assert without(features(), copy, PACKAGE) == set(features())
    assert names_that_are_gone(copy) == ""
    python(copy, "-c", IMPORT_ALL)
    assert "features." not in (copy / "formation_p2p" / "command" / "main.py").read_text()
    python(copy, "-m", "formation_p2p", "network", "create", "--home", str(home))
    script = copy / "job.py"
    script.write_text(RUN)
    python(copy, str(script), str(home))


def test_a_feature_that_lacks_its_extra_names_the_command_that_installs_it(tmp_path: Path) -> None:
    home = tmp_path / "home"
    python(ROOT, "-m", "formation_p2p", "network", "create", "--home", str(home))
    python(ROOT, "-c", LACKING, str(home))


def test_the_gateway_needs_no_extra_but_its_own() -> None:
    python(
        ROOT,
        "-c",
        "import sys; sys.modules['httpx2'] = None; import formation_p2p.features.gateway.app, "
        "formation_p2p.features.gateway.streams, formation_p2p.features.gateway.proxying",
    )
