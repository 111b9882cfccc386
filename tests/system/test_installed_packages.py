"""Drivers and features of other packages: installed beside this one, they go by their names."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Final

import pytest

from tests.support.waiting import HANGS_S

SLEEPY: Final = """
import trio
from formation_p2p import Succeeded

class Nap:
    driver = "sleep"
    def encode(self):
        return b"0.01"

class Sleep:
    name = "sleep"
    async def run(self, execution, report):
        await trio.sleep(float(execution.payload))
        return Succeeded(b"slept " + execution.payload)
    async def end_lease(self, lease_id):
        pass

def set_up(machine):
    assert machine.home.is_dir()
    return Sleep

def unready(machine):
    raise KeyError("bed")

def forgetful(machine):
    pass

pillow = "soft"
"""
# Two nodes in one process: one lends the machine for naps, the other submits one.
STORY: Final = """
import asyncio, sys, time
from pathlib import Path
from sleepy import Nap
from formation_p2p import Node
from formation_p2p.trust.core.grants import Rights
from formation_p2p.machine.home import Home

async def main(folder):
    home = Home(folder / "alice")
    home.create_network()
    async with Node.join(home=home.path, listen=["/ip4/127.0.0.1/tcp/0"]) as alice:
        await alice.worker(drivers=["sleep"], sandbox="off")
        home.add_gate(alice.addresses[0])
        invite = home.invite(Rights(int(time.time()) + 3600))
        async with Node.join(invite, home=folder / "bob", listen=()) as bob:
            while not (await bob.explain("driver=sleep")).ranked:
                await asyncio.sleep(0.05)
            (slept,) = await (await bob.submit(Nap(), needs="cpu=0.1,memory=64MiB"))
            print(slept.status, slept.result)

asyncio.run(main(Path(sys.argv[1])))
"""
# Alice publishes a motto, which a command in a process of its own reads, and Bob waves to her.
FEATURE_STORY: Final = """
import asyncio, subprocess, sys, time
from pathlib import Path
from formation_p2p import FormationError, Node
from formation_p2p.trust.core.grants import Rights
from formation_p2p.machine.home import Home

async def main(folder):
    home = Home(folder / "alice")
    home.create_network()
    async with Node.join(home=home.path, listen=["/ip4/127.0.0.1/tcp/0"]) as alice:
        home.add_gate(alice.addresses[0])
        invite = home.invite(Rights(int(time.time()) + 3600))
        async with Node.join(invite, home=folder / "bob", listen=()) as bob:
            while not await bob.neighbours():
                await asyncio.sleep(0.05)
            mottos = alice.feature("mottos")
            await mottos.set("Festina lente")
            print(await bob.feature("mottos").of(alice.peer_id))
            address = alice.addresses[0].partition("/p2p/")[0]
            await bob.feature("mottos").wave(alice.peer_id, address, "hello")
            sender, words = await mottos.waved()
            print(sender == bob.peer_id, words)
            try:
                bob.feature("anthem")
            except FormationError as error:
                print(error)
        command = (sys.executable, "-m", "formation_p2p", "motto", alice.peer_id)
        ran = await asyncio.create_subprocess_exec(*command, "--home", folder / "bob", stdout=-1)
        print((await ran.communicate())[0].decode().strip())

asyncio.run(main(Path(sys.argv[1])))
"""
# As `set_up_drivers` is asked by `formation worker --driver NAME`.
ASK: Final = """
import sys
from pathlib import Path
from formation_p2p.core.errors import FormationError
from formation_p2p.drivers.assembly import set_up_drivers
for names in sys.argv[2:]:
    try:
        print(sorted(set_up_drivers(names.split(), Path(sys.argv[1]), "off")))
    except FormationError as error:
        print(error)
"""


def wheel(folder: Path, package: str, code: str, entry_points: str) -> Path:
    """Of one module."""
    module, info = package.replace("-", "_"), f"{package.replace('-', '_')}-1.0.dist-info"
    files = {
        f"{module}.py": code,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": entry_points,
    }
    made = folder / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        archive.writestr(f"{info}/RECORD", "".join(f"{name},,\n" for name in files))
    return made


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One package that works, and three that do not, each in its own way."""
    folder = tmp_path_factory.mktemp("packages") / "site"
    drivers = (
        "[formation_p2p.drivers]\nsleep = sleepy:set_up\nunready = sleepy:unready\n"
        "forgetful = sleepy:forgetful\npillow = sleepy:pillow\n"
    )
    noisy = "[formation_p2p.drivers]\nnoisy = noisy_neighbour:set_up\nprocess = noisy_neighbour:x\n"
    mottos = (Path(__file__).parents[1] / "support" / "mottos.py").read_text()
    features = (
        "[formation_p2p.features]\nmottos = mottos:FEATURE\n"
        "[formation_p2p.commands]\nmotto = mottos:motto\n"
    )
    wheels = (
        wheel(folder.parent, "mottos", mottos, features),
        wheel(folder.parent, "sleepy", SLEEPY, drivers),
        wheel(folder.parent, "noisy-neighbour", "import no_such_module_anywhere", noisy),
        wheel(folder.parent, "garbled", "", ""),
    )
    pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    offline = ("--no-index", "--no-deps", "--target", str(folder), *map(str, wheels))
    subprocess.run((*pip, *offline), check=True, timeout=HANGS_S)
    garbled = folder / "garbled-1.0.dist-info" / "entry_points.txt"  # pip installs none that is so
    garbled.write_text("[formation_p2p.drivers]\nnot an entry point\n")
    return folder


def python(packages: Path, *argv: str) -> str:
    path = os.pathsep.join((str(packages), str(Path(__file__).parents[2])))
    done = subprocess.run(
        (sys.executable, *argv),
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=HANGS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ask(packages: Path, home: Path, *names: str) -> str:
    return python(packages, "-c", ASK, str(home), *names)


def test_a_node_runs_work_of_a_driver_that_another_package_brings(
    packages: Path, tmp_path: Path
) -> None:
    assert python(packages, "-c", STORY, str(tmp_path)) == "succeeded b'slept 0.01'"


def test_the_help_of_worker_names_the_drivers_that_are_installed(packages: Path) -> None:
    reported = python(packages, "-m", "formation_p2p", "worker", "--help")
    names = reported.partition("Drivers:")[2].partition("Examples:")[0].replace(",", " ").split()
    own = ["process", "python", "wasm", "container", "image"]
    assert names == [*own, "forgetful", "noisy", "pillow", "sleep", "unready"]


def test_a_package_that_is_broken_is_named_and_costs_nothing_else(
    packages: Path, tmp_path: Path
) -> None:
    broken = (
        ("noisy", "noisy-neighbour", "No module named 'no_such_module_anywhere'"),
        ("unready", "sleepy", "KeyError('bed')"),
        ("forgetful", "sleepy", "set_up(machine) has to return what makes the driver"),
        ("pillow", "sleepy", "'str' object is not callable"),
    )
    asked = (f"process {name}" for name, _, _ in broken)
    *told, last = ask(packages, tmp_path, *asked, "process sleep").splitlines()
    for reported, (name, package, why) in zip(told, broken, strict=True):
        assert f"{name!r} of {package} 1.0 cannot be " in reported
        assert why in reported
        assert reported.endswith("; mend or uninstall it")
    assert last == "['process', 'sleep']"


def test_a_name_that_is_not_installed_is_refused_with_those_that_are(
    packages: Path, tmp_path: Path
) -> None:
    reported = ask(packages, tmp_path, "process slep")
    known = "process, python, wasm, container, image, forgetful"
    assert f"'slep' is not installed; there are {known}" in reported


def test_a_feature_of_another_package_has_a_message_a_record_a_method_and_a_command(
    packages: Path, tmp_path: Path
) -> None:
    told = python(packages, "-c", FEATURE_STORY, str(tmp_path)).splitlines()
    assert told == [
        "Festina lente",
        "True hello",
        "feature: no package offers programs 'anthem'; install one",
        "Festina lente",
    ]
    shown = python(packages, "-m", "formation_p2p", "--help")
    assert shown.partition("Commands of other packages:")[2].split()[:2] == ["motto", "mottos"]
