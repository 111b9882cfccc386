"""Where a program finds its secrets: files in a folder in memory, for as long as it runs."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import FormationError, LocalError
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.process import ProcessSpec

VARIABLE: Final = "FORMATION_SECRETS"
# No disk ever has them.
MEMORY: Final = Path("/dev/shm")
_PREFIX: Final = "formation-secrets-"

# Of the owner of a program. Raises LocalError, RemoteError.
SecretOf = Callable[[Blob], Awaitable[bytes]]


class NoSecret(LocalError):
    """One is not to be had."""


@asynccontextmanager
async def secrets_of(spec: ProcessSpec, secret: SecretOf | None) -> AsyncIterator[Path | None]:
    """The folder with them, each as `secret` has it; None for a program without any. Raises
    NoSecret, OSError."""
    if not spec.secrets:
        yield None
        return
    if secret is None:
        raise NoSecret("this worker fetches no secrets")
    contents: dict[str, bytes] = {}
    for name, blob in spec.secrets.items():
        try:
            contents[name] = await secret(blob)
        except FormationError as error:
            raise NoSecret(f"the secret {name} is not to be had: {error}") from error
    sweep()
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=MEMORY))
    try:
        for name, content in contents.items():
            with os.fdopen(os.open(folder / name, os.O_WRONLY | os.O_CREAT, 0o400), "wb") as file:
                file.write(content)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(memory: Path = MEMORY) -> None:
    """Removes what nodes of this user have left that were killed."""
    for path in memory.glob(f"{_PREFIX}*"):
        pid = path.name.removeprefix(_PREFIX).partition("-")[0]
        with suppress(FileNotFoundError):  # another node has removed it meanwhile
            if not Path(f"/proc/{pid}").exists() and path.stat().st_uid == os.getuid():
                shutil.rmtree(path, ignore_errors=True)
