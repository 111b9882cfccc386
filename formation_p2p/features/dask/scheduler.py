"""Dask's scheduler as a member runs it: it tells the owner what is to outlive it, and lets workers
leave when what they run has ended.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import time
from typing import TYPE_CHECKING, Any, Final

from distributed import Scheduler
from distributed.comm.addressing import get_address_host
from distributed.core import Status

from formation_p2p.features.dask.comm import rank_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DASHBOARD_PORT: Final = 8787
# Of graphs that the owner has not taken over yet; a cluster's owner takes them as they come.
MAX_UNTOLD: Final = 10_000
# The name under which the scheduler itself wants what the state keeps.
STATE: Final = "formation-state"
# Of how a graph was submitted.
_KEPT: Final = ("internal_priority", "user_priority", "actors", "annotations")
_POLL_S: Final = 0.05


class FormationScheduler(Scheduler):  # type: ignore[misc]
    """A graph is told to the owner before it is worked on where the owner keeps a state, and so is
    that its keys are wanted no more. Nothing of a user is unpickled that Dask's own does not."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.handlers |= {
            "formation_leave": self.leave,
            "formation_follow": self.follow,
            "formation_put": self.put,
            "formation_graph": self.graph,
            "formation_resumed": self.resumed,
            "formation_desire": self.desire,
            "formation_result": self.result,
        }
        self.stream_handlers["client-releases-keys"] = self.released
        self.stream_handlers["close-client"] = self.left
        self._untold: deque[dict[str, Any]] = deque(maxlen=MAX_UNTOLD)
        self._to_tell = asyncio.Event()
        self._follows = False
        self._resumed = asyncio.Event()
        # By graph, the keys that a client has asked for and not released.
        self._graphs: dict[str, set[Any]] = {}

    async def add_worker(self, comm: Any, *, address: str, name: Any, **options: Any) -> None:
        """Workers are named by their ranks: others would be told to leave in their place, and a
        name is shown to people."""
        rank = rank_of(get_address_host(address))
        if name != rank:
            message = f"the worker of member {rank} has to be named {rank}"
            await comm.write({"status": "error", "message": message, "time": time()})
            return
        await super().add_worker(comm, address=address, name=name, **options)

    # A worker leaves.

    async def leave(self, names: Iterable[Any]) -> list[Any]:
        """Have workers finish what they run, move what they keep, and end. Returns the names of
        those that did; the others have what no other worker can take."""
        wanted = set(map(str, names))
        leaving = [ws for ws in self.workers.values() if str(ws.name) in wanted]
        stimulus = f"leave-{time()}"
        for ws in leaving:
            self.handle_worker_status_change(Status.closing_gracefully, ws, stimulus)
            change = {"op": "worker-status-change", "status": ws.status.name}
            self.stream_comms[ws.address].send({**change, "stimulus_id": stimulus})
        await asyncio.gather(*map(self._idle, leaving))
        retired = await self.retire_workers(
            workers=[ws.address for ws in leaving], close_workers=True, remove=True
        )
        return [each["name"] for each in retired.values()]

    async def _idle(self, ws: Any) -> None:
        """Until it runs nothing. What it has not begun goes to others when it is retired."""
        while self.workers.get(ws.address) is ws:
            try:
                running = await self.rpc(ws.address).formation_running()
            except OSError:
                return
            if not running:
                return
            await asyncio.sleep(_POLL_S)

    # What outlives this scheduler.

    async def follow(self, comm: Any) -> Any:
        """The owner takes over what it is to keep, for as long as `comm` lives."""
        self._follows = True
        try:
            while True:
                await self._to_tell.wait()
                self._to_tell.clear()
                while self._untold:
                    await comm.write(self._untold[0])
                    self._untold.popleft()
        except OSError:
            return Status.dont_reply

    def _tell(self, record: dict[str, Any]) -> None:
        if self._follows:
            self._untold.append(record)
            self._to_tell.set()

    async def update_graph(
        self, client: str, expr_ser: Any, keys: Any, stimulus_id: str | None = None, **options: Any
    ) -> None:
        number = stimulus_id or f"graph-{time()}"
        if client != STATE and self._follows:
            self._graphs[number] = set(keys)
            record = {"op": "graph", "number": number, "expr_ser": expr_ser, "keys": list(keys)}
            record["options"] = {name: options[name] for name in _KEPT if name in options}
            self._tell(record)
        await super().update_graph(
            client=client, expr_ser=expr_ser, keys=keys, stimulus_id=stimulus_id, **options
        )

    def released(self, keys: Any, client: str, **options: Any) -> None:
        """A client wants these no more. Where it has merely gone they stay."""
        self.client_releases_keys(keys=keys, client=client, **options)
        for number, wanted in list(self._graphs.items()):
            wanted -= {key for key in keys if not self._is_wanted(key)}
            if not wanted:
                del self._graphs[number]
                self._tell({"op": "forget", "number": number})
        if STATE in self.clients:
            still = set().union(*self._graphs.values())
            mine = [ts.key for ts in self.clients[STATE].wants_what if ts.key in set(keys) - still]
            self.client_releases_keys(keys=mine, client=STATE)

    def left(self, client: str, **options: Any) -> None:
        """A client closes, and wants nothing more."""
        if client in self.clients:
            wanted = [ts.key for ts in self.clients[client].wants_what]
            self.released(wanted, client)
        self.remove_client(client, **options)

    def _is_wanted(self, key: Any) -> bool:
        ts = self.tasks.get(key)
        return ts is not None and any(cs.client_key != STATE for cs in ts.who_wants or ())

    async def result(self, key: Any) -> Any:
        """The bytes of a result, once it is there. Raises KeyError where it is not known, and
        RuntimeError where it failed."""
        while True:
            ts = self.tasks.get(key)
            if ts is None:
                raise KeyError(f"the cluster does not know {key!r}; submit it, and keep it then")
            if ts.state == "erred":
                raise RuntimeError(f"{key!r} failed: {ts.exception_text}")
            if ts.state == "memory":
                found = await self.gather([key])
                if found["status"] == "OK":
                    return found["data"][key]
            await asyncio.sleep(_POLL_S)

    # A new life.

    async def put(self, key: Any, data: Any) -> None:
        """A result of an earlier life."""
        await self.scatter({key: data}, workers=None, client=STATE, timeout=60)

    async def graph(
        self, number: str, expr_ser: Any, keys: list[Any], options: Mapping[str, Any]
    ) -> None:
        """A graph of an earlier life."""
        self._graphs[number] = set(keys)
        self.client_desires_keys([], client=STATE)
        await super().update_graph(
            client=STATE,
            expr_ser=expr_ser,
            keys=set(keys),
            span_metadata={"collections": []},
            submitting_task=None,
            stimulus_id=number,
            **options,
        )

    def resumed(self) -> None:
        self._resumed.set()

    async def desire(self, client: str, keys: list[Any]) -> list[Any]:
        """A client of an earlier life is back. Returns those keys that are not known any more."""
        await self._resumed.wait()
        known = [key for key in keys if key in self.tasks]
        self.client_desires_keys(known, client=client)
        return [key for key in keys if key not in self.tasks]
