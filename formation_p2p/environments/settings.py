"""What a worker allows for the environments of tasks, and where their packages come from.

uv does not read pip's configuration. A machine that has one names its package index there, so that
is the default here.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
from formation_p2p.machine.core.bounds import check_amount, shown
from formation_p2p.workload.core.environment import MAX_INDEXES

# PyTorch with CUDA takes 7 GB, most others far less.
DEFAULT_DISK_BYTES: Final = 20 * GIB
MIN_DISK_BYTES: Final = 16 * MIB
MAX_DISK_BYTES: Final = 1 << 50
# PyTorch over a slow line; what is built from its sources takes minutes.
DEFAULT_BUILD_S: Final = 900.0
MAX_BUILD_S: Final = 24 * 3600.0

# As uv and pip have it themselves.
_PYPI: Final = "https://pypi.org/simple"
_SCHEMES: Final = ("https", "http", "file")


@dataclass(frozen=True, slots=True)
class EnvironmentSettings:
    """`indexes` are the addresses of package indexes: the first is the worker's own, the others may
    be asked for by `Env.indexes`. None is what pip's configuration names, or PyPI; with an empty
    tuple wheels come from submitters alone. All environments and uv's cache take at most
    `disk_bytes`, and a build `build_s`. `sources` is whether packages without a wheel are built:
    that runs their code, by default in a sandbox only.

    Raises InvalidInput.
    """

    indexes: tuple[str, ...] | None = None
    disk_bytes: int = DEFAULT_DISK_BYTES
    build_s: float = DEFAULT_BUILD_S
    sources: bool | None = None

    def __post_init__(self) -> None:
        for url in self.indexes or ():
            if not isinstance(url, str) or urlsplit(url).scheme not in _SCHEMES:
                raise InvalidInput("index-url", f"{shown(url)} is not an address of an index")
        if len(self.indexes or ()) > MAX_INDEXES:
            raise InvalidInput("index-url", f"there are more than {MAX_INDEXES}; leave some out")
        check_amount("environments.disk", self.disk_bytes, MIN_DISK_BYTES, MAX_DISK_BYTES)
        if not 0 < self.build_s <= MAX_BUILD_S:
            raise InvalidInput("environments.build", f"is not 0 to {MAX_BUILD_S:.0f} seconds")

    @property
    def own_indexes(self) -> tuple[str, ...]:
        """Those that are allowed, the default one first."""
        return (configured_index(),) if self.indexes is None else self.indexes

    def builds_sources(self, *, sandboxed: bool) -> bool:
        return sandboxed if self.sources is None else self.sources


@dataclass(frozen=True, slots=True)
class Source:
    """Where packages come from: `indexes`, the default one last, or `options` of uv without."""

    indexes: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def variables(self, address: Callable[[str], str] = str) -> dict[str, str]:
        """Of uv. Not options: everyone on the machine sees those, and an address may have a
        password."""
        if not self.indexes:
            return {}
        *others, default = map(address, self.indexes)
        return {"UV_INDEX": " ".join(others), "UV_DEFAULT_INDEX": default}


def configured_index() -> str:
    """That of uv, or of pip; PyPI where they name none."""
    given = os.environ.get("UV_DEFAULT_INDEX") or os.environ.get("UV_INDEX_URL")
    return given or pip_option("index-url", "install") or _PYPI


def pip_option(name: str, command: str) -> str:
    """What this machine has `pip` do as if it was an option of the command. Empty for nothing."""
    if given := os.environ.get(f"PIP_{name.upper().replace('-', '_')}"):
        return given
    for section in (command, "global"):
        for path in reversed(_pip_files()):
            if given := _read(path).get(section, name, fallback=""):
                return given
    return ""


def network_variables() -> dict[str, str]:
    """What programs without a sandbox need to reach an index: proxies, and certificates."""
    names = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
    found = {
        name: os.environ[name]
        for lower in names
        for name in (lower, lower.upper())
        if name in os.environ
    }
    path = certificates()
    return found if path is None else {**found, "SSL_CERT_FILE": path}


def certificates() -> str | None:
    """The file of those that are trusted here, where it is not the system's."""
    names = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT")
    return next((path for name in names if (path := os.environ.get(name))), None)


def _pip_files() -> list[Path]:
    """As pip reads them: later ones count more."""
    if (named := os.environ.get("PIP_CONFIG_FILE")) == os.devnull:
        return []
    shared = (os.environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(":")
    own = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    files = [*(Path(each, "pip", "pip.conf") for each in shared), Path("/etc/pip.conf")]
    files += [Path.home() / ".pip" / "pip.conf", Path(own, "pip", "pip.conf")]
    return [*files, Path(sys.prefix, "pip.conf"), *([Path(named)] if named else [])]


def _read(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser()
    parser.optionxform = lambda name: name.lower().replace("_", "-")  # type: ignore[method-assign, assignment]
    # What cannot be read is pip's, which complains itself.
    with suppress(OSError, UnicodeDecodeError, configparser.Error):
        parser.read_string(path.read_text(encoding="utf-8"))
    return parser
