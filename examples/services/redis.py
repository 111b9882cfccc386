"""redis: the system's redis-server, on its volume; it refuses plainly where that is missing."""

from __future__ import annotations

import os
import shutil
import sys


def main() -> None:
    program = shutil.which("redis-server")
    if program is None:
        sys.exit("redis-server is not installed on this machine; apt install redis-server")
    folder = os.environ.get("FORMATION_VOLUME", ".")
    arguments = [program, "--port", "0", "--unixsocket", os.environ["FORMATION_SOCKET"]]
    os.execv(program, [*arguments, "--dir", folder, "--save", "60", "1", "--daemonize", "no"])


if __name__ == "__main__":
    main()
