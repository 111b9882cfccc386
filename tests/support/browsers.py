"""Debian's chromium, and a gateway for it that runs in a thread beside."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import pytest
from playwright.sync_api import Browser, sync_playwright

from formation_p2p.core.trust.network import Network
from formation_p2p.gateway.server import GatewayServer
from tests.support.gateways import MemorySource

T = TypeVar("T")


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test where there is none; fails it where it has to be there, as in CI."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        why = "chromium is not installed: apt-get install chromium"
        if os.environ.get("FORMATION_REQUIRES_BROWSER"):
            pytest.fail(why)
        pytest.skip(why)
    # Containers have neither its own sandbox nor much of /dev/shm.
    flags = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=flags)
        try:
            yield browser
        finally:
            browser.close()


class ServedGateway:
    """A gateway with its source in memory, on a loop in a thread of its own. Without a network it
    is one of loopback."""

    def __init__(self, source: MemorySource, network: Network | None) -> None:
        self.source = source
        self._network = network
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        host = "127.0.0.1" if network is None else "0.0.0.0"
        self.server = self._opened(f"{host}:0")
        self.url = f"http://127.0.0.1:{self.server.address[1]}"
        self._listen = f"{host}:{self.server.address[1]}"

    def _opened(self, listen: str) -> GatewayServer:
        async def opened() -> GatewayServer:
            server = GatewayServer(self.source, self._network, listen, refresh_s=0.3)
            return await server.__aenter__()

        return self.run(opened())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def call(self, do: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(do)

    def stop(self) -> None:
        self.run(self.server.close())

    def start(self) -> None:
        """Again, at the same port."""
        self.server = self._opened(self._listen)

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)
        self._loop.close()


@contextmanager
def served(source: MemorySource, network: Network | None = None) -> Iterator[ServedGateway]:
    gateway = ServedGateway(source, network)
    try:
        yield gateway
    finally:
        gateway.close()
