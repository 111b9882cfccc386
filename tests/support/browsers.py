"""Debian's chromium, and a gateway for it that runs in a thread beside."""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

import pytest
from playwright.sync_api import Browser, sync_playwright

from formation_p2p.features.gateway.nearest import Nearest
from formation_p2p.features.gateway.server import GatewayServer
from formation_p2p.trust.core.network import Network
from tests.support.gateways import MemorySource
from tests.support.waiting import HANGS_S

T = TypeVar("T")
# Of every text that is shown, with what is painted behind it: the ratio of WCAG 2.2, 1.4.3.
CONTRASTS: Final = """() => {
  const channels = (color) => {
    const canvas = new OffscreenCanvas(1, 1).getContext("2d");
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (color) => {
    const [r, g, b] = channels(color).slice(0, 3).map((each) => {
      const part = each / 255;
      return part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (channels(color)[3] === 255) return color;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const found = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].filter((each) => each.nodeType === 3);
    const text = own.map((each) => each.data).join("").trim();
    const isSeen = element.checkVisibility({ visibilityProperty: true });
    if (!text || !isSeen || element.disabled) continue;
    const [a, b] = [light(getComputedStyle(element).color), light(behind(element))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found[`${element.tagName}.${element.className} ${text.slice(0, 40)}`] = ratio;
  }
  return found;
}"""


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
        self._nearest: Nearest | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        host = "127.0.0.1" if network is None else "0.0.0.0"
        self.server = self._opened(f"{host}:0")
        self.url = f"http://127.0.0.1:{self.server.address[1]}"
        self._listen = f"{host}:{self.server.address[1]}"

    def _opened(self, listen: str) -> GatewayServer:
        async def opened() -> GatewayServer:
            server = GatewayServer(
                self.source, self._network, listen, refresh_s=0.3, nearest=self._nearest
            )
            return await server.__aenter__()

        return self.run(opened())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(HANGS_S)

    def call(self, do: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(do)

    def stop(self) -> None:
        self.run(self.server.close())

    def start(self) -> None:
        """Again, at the same port."""
        self.server = self._opened(self._listen)

    def restart_beside(self, nearest: Nearest) -> None:
        """At the same port, which others could be told of before."""
        self.stop()
        self._nearest = nearest
        self.start()

    def close(self) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(HANGS_S)
        self._loop.close()


@contextmanager
def served(source: MemorySource, network: Network | None = None) -> Iterator[ServedGateway]:
    gateway = ServedGateway(source, network)
    try:
        yield gateway
    finally:
        gateway.close()
