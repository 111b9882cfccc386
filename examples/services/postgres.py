"""postgres: the system's PostgreSQL, on its volume; it refuses plainly where that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path


def found(name: str) -> str | None:
    """On PATH, or where Debian has the newest."""
    newest = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), reverse=True)
    return shutil.which(name) or next(map(str, newest), None)


def main() -> None:
    server, initdb = found("postgres"), found("initdb")
    if server is None or initdb is None:
        sys.exit("PostgreSQL is not installed on this machine; apt install postgresql")
    if os.getuid() == 0:
        sys.exit("PostgreSQL does not run as root; run the worker as another user")
    data = Path(os.environ.get("FORMATION_VOLUME", ".")) / "data"
    if not (data / "PG_VERSION").exists():
        subprocess.run([initdb, "-D", str(data), "-A", "trust", "-U", "postgres"], check=True)
    port = os.environ["PORT"]
    settings = ["-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories="]
    os.execv(server, [server, "-D", str(data), "-p", port, *settings])


if __name__ == "__main__":
    main()
