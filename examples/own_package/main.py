"""Calls of a package of one's own, with its data files: it goes along with them.

FORMATION_HOME=... python examples/own_package/main.py      # that which worker.py prints

Nothing of it has to be installed on the workers. The package is sent once to each, by its content.
"""

import asyncio
import sys

from thesaurus.text import Text, synonyms

from formation_p2p import CodeSent, Node, python_calls, value_of

TEXTS = [
    Text("Ada", "a quick answer to a hard question"),
    Text("Bob", "a small machine may be quick"),
    Text("Cyd", "hard work, small talk"),
]


async def main(invite: str | None) -> None:
    async with Node.join(invite, listen=()) as node:
        job = await node.submit(python_calls(synonyms, TEXTS))
        async for event in job.events():
            if isinstance(event, CodeSent):
                print(f"goes along: {event.code}")
        for text, result in zip(TEXTS, await job, strict=True):
            print(f"{text.author}: {value_of(result)}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else None))
