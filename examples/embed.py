"""A web server that stays quick, since its slow answers are worked out elsewhere.

FORMATION_HOME=... python examples/embed.py 8088      # the home that worker.py prints
curl http://127.0.0.1:8088/100000980001501
"""

import asyncio
import sys
from asyncio import StreamReader, StreamWriter
from http import HTTPStatus

from formation_p2p import FormationError, Node


def factors(number: int) -> list[int]:
    """The prime factors, by trial division: slow on purpose. Runs on a worker."""
    found, factor = [], 2
    while factor * factor <= number:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return [*found, number] if number > 1 else found


async def answer(node: Node, path: str) -> tuple[HTTPStatus, str]:
    number = path.removeprefix("/")
    if not (number.isdecimal() and number.isascii() and 0 < len(number) <= 20):
        return HTTPStatus.BAD_REQUEST, "ask for a whole number of up to 20 digits\n"
    try:
        (found,) = await node.map(factors, [int(number)], timeout_s=60)
    except FormationError as error:
        return HTTPStatus.SERVICE_UNAVAILABLE, f"{error}\n"
    return HTTPStatus.OK, f"{number} = {' * '.join(map(str, found))}\n"


async def main(port: int) -> None:
    async with Node.join(listen=()) as node:

        async def serve(reader: StreamReader, writer: StreamWriter) -> None:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5)
            status, text = await answer(node, head.decode("latin-1").split()[1])
            reply = f"HTTP/1.1 {status.value} {status.phrase}\r\nConnection: close\r\n\r\n{text}"
            writer.write(reply.encode())
            writer.close()

        try:
            server = await asyncio.start_server(serve, "127.0.0.1", port)
        except OSError as error:
            sys.exit(f"port {port} cannot be had: {error.strerror}; name another, or none")
        print("http://{}:{}/".format(*server.sockets[0].getsockname()), flush=True)
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
