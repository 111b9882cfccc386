"""Commands for a node in a process of its own: one JSON object a line on stdin, one on stdout for
each, in their order. The first line of all is who the node is and where it listens.

`{"do": "get_value", "name": "2f74…"}` is answered by `{"done": "76…"}` or `{"failed": "…"}`.
Bytes are hexadecimal. When stdin ends, so does the node.
"""

import json
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import trio

Command = Callable[[dict[str, Any]], Awaitable[object]]


async def obey(commands: Mapping[str, Command], hello: Mapping[str, object]) -> None:
    """Until stdin ends."""
    _say(hello)
    async with trio.lowlevel.FdStream(0) as stdin:
        unread = b""
        async for more in stdin:
            *lines, unread = (unread + more).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                try:
                    done = await commands[asked["do"]](asked)
                except Exception as error:  # noqa: BLE001  # told to the test, which judges it
                    _say({"failed": repr(error)})
                else:
                    _say({"done": done})


def _say(said: Mapping[str, object]) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
