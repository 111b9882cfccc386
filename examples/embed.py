"""A web application that stays quick, since its slow answers are worked out elsewhere.

FORMATION_HOME=... python examples/embed.py 8088      # the home that worker.py prints
curl http://127.0.0.1:8088/factors/100000980001501

It needs `pip install fastapi uvicorn`. A server with several processes has a node in each of them.
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import uvicorn
from fastapi import FastAPI, HTTPException, Path, Request

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


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """The node runs for as long as the application."""
    async with Node.join(listen=()) as node:
        app.state.node = node
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/factors/{number}")
async def factors_of(number: Annotated[int, Path(gt=0, lt=10**20)], request: Request) -> list[int]:
    try:
        (found,) = await request.app.state.node.map(factors, [number], timeout_s=60)
    except FormationError as error:
        raise HTTPException(503, str(error)) from error
    return list(found)


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 0)
