"""Whether what is released works: `python -m tools.release [--extras] [PYTHON ...]`.

Builds the sdist and the wheel into dist/ and has twine check them. Installs each into an empty
environment of each Python, and runs `formation demo` there, far from the checkout. With `--extras`
each extra is installed alone, beside the wheel, and what needs it is imported. Needs the extra
`release`.
"""

from __future__ import annotations

import argparse
import configparser
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PYTHONS: Final = ("3.11", "3.12", "3.13", "3.14")
NAME: Final = "formation_p2p"
# The first module that needs an extra, where it is more than a program beside.
NEEDS: Final = {
    "wasm": "wasmtime, formation_p2p.features.wasm.wasm_runner",
    "container": "formation_p2p.features.containers.container",
    "environments": "uv",
    "joblib": "joblib, formation_p2p.joblib",
    "dask": "formation_p2p.features.dask.member",
    "gateway": "formation_p2p.features.gateway.app",
    "services": "formation_p2p.features.services.api.http",
    "otel": "opentelemetry.sdk.trace, formation_p2p.observe.tracing",
    "all": "formation_p2p.features.gateway.app, formation_p2p.features.dask.member",
}
# For a checkout: the wheel does not have what they are for.
OF_A_CHECKOUT: Final = {"bench", "dev", "docs", "release", "sim"}
INSTALL_S: Final = 600.0
# As the demo's own bound, and its start and end.
DEMO_S: Final = 720.0


def run(*command: str | Path, within_s: float = INSTALL_S, folder: Path = ROOT) -> str:
    """What it prints. Raises CalledProcessError, TimeoutExpired."""
    # The checkout is in none of its paths.
    variables = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env=variables,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=within_s,
    )
    return done.stdout


def build() -> list[Path]:
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    run(sys.executable, "-m", "build", "--outdir", dist, ROOT)
    made = sorted(dist.iterdir())
    run(sys.executable, "-m", "twine", "check", "--strict", *made)
    return made


def is_here(python: str) -> bool:
    find = ["uv", "python", "find", "--no-project", "--no-python-downloads", "--quiet", python]
    return subprocess.run(find, stdout=subprocess.DEVNULL, check=False).returncode == 0


def python_of(environment: Path, python: str, what: str) -> Path:
    """The interpreter of a new environment that has `what` and what that needs."""
    run("uv", "venv", "--quiet", "--no-project", "--python", python, environment)
    here = environment / "bin" / "python"
    run("uv", "pip", "install", "--quiet", "--python", here, what)
    return here


def check_demo(archive: Path, python: str, scratch: Path) -> str:
    environment = scratch / f"{python}{archive.suffix}"
    python_of(environment, python, str(archive))
    formation = environment / "bin" / "formation"
    told = json.loads(run(formation, "version", "--json", folder=scratch))
    lines = run(formation, "demo", "--json", within_s=DEMO_S, folder=scratch).splitlines()
    outcome = json.loads(lines[-1])
    assert outcome["ok"], outcome
    return f"Python {told['python']}: {outcome['tasks']} tasks in {outcome['wall_s']} s"


def extras() -> Iterator[str]:
    """Those that a user of the wheel can name."""
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    yield from sorted(set(parser["options.extras_require"]) - OF_A_CHECKOUT)


def check_extra(wheel: Path, extra: str, scratch: Path) -> None:
    here = python_of(scratch / extra, sys.executable, f"{NAME}[{extra}] @ {wheel.as_uri()}")
    run(here, "-c", f"import {NEEDS[extra]}", folder=scratch)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("pythons", nargs="*", metavar="PYTHON", help="instead of all from 3.11 on")
    parser.add_argument("--extras", action="store_true", help="also each extra, by itself")
    asked = parser.parse_args()
    sdist, wheel = sorted(build(), key=lambda path: path.suffix == ".whl")
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        for python in asked.pythons or PYTHONS:
            if not asked.pythons and not is_here(python):
                print(f"Python {python}: not on this machine", flush=True)
                continue
            for archive in (wheel, sdist):
                print(f"{archive.name}  {check_demo(archive, python, scratch)}", flush=True)
        for extra in extras() if asked.extras else ():
            check_extra(wheel, extra, scratch)
            print(f"{wheel.name}[{extra}]: installed by itself", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
