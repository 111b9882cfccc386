"""People who say no region are sent to the nearest gateway, in a real browser, over roads of
different lengths."""

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Page, Request, Route, TimeoutError, expect

from formation_p2p import Home, Right
from formation_p2p.features.gateway.nearest import Nearest
from formation_p2p.features.gateway.token import make_token
from formation_p2p.trust.core.network import Network
from tests.support.browsers import CONTRASTS, ServedGateway, chromium, served
from tests.support.gateways import MemorySource, Serving, program

# Of a request on the long road. The page asks for 30 ms at least, and a busy machine adds some.
FAR_S: Final = 0.25
HOSTILE: Final = "<img src=x onerror=window.broken=1>"
KEPT: Final = "sessionStorage.getItem('formation.stays')"
WAIT_MS: Final = 60_000
TABS: Final = 4
expect.set_options(timeout=WAIT_MS)


class Road:
    """To a gateway: what clients send takes `delay_s`. `host` is how the road is called, so that
    two roads on one machine are two sites."""

    def __init__(self, gateway: ServedGateway, host: str, delay_s: float = 0.0) -> None:
        self.gateway = gateway
        self.delay_s = delay_s
        self._target = gateway.server.address[1]
        self._programs = AsyncExitStack()
        self.url = self.beside(self._carry, host)

    def beside(self, serve: Serving, host: str = "127.0.0.1") -> str:
        """The URL of one more program, as long as the road is there."""
        port = self.gateway.run(self._programs.enter_async_context(program(serve)))
        return f"http://{host}:{port}"

    def close(self) -> None:
        self.gateway.run(self._programs.aclose())

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self._target)

        async def returned() -> None:
            while data := await there.read(65_536):
                writer.write(data)

        returning = asyncio.create_task(returned())
        try:
            while data := await reader.read(65_536):
                await asyncio.sleep(self.delay_s)
                back.write(data)
        finally:
            returning.cancel()
            back.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    home = Home(tmp_path_factory.mktemp("nearest") / "home")
    home.create_network()
    return home


@pytest.fixture(scope="module")
def network(home: Home) -> Network:
    network = home.network()
    assert network is not None
    return network


@pytest.fixture
def us(network: Network) -> Iterator[Road]:
    """Far from the user."""
    with served(MemorySource(), network) as gateway:
        road = Road(gateway, "127.0.0.1", FAR_S)
        yield road
        road.close()


@pytest.fixture
def eu(network: Network) -> Iterator[Road]:
    with served(MemorySource(), network) as gateway:
        road = Road(gateway, "localhost")
        yield road
        road.close()


@pytest.fixture
def each_names_the_other(us: Road, eu: Road) -> None:
    us.gateway.restart_beside(Nearest("us", {"eu": eu.url}))
    eu.gateway.restart_beside(Nearest("eu", {"us": us.url}))


def tab(browser: Browser, **kind: Any) -> Page:
    page = browser.new_context(**kind).new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: pytest.fail(f"the page failed: {error}"))
    return page


def asked(page: Page, ending: str = "/health") -> list[str]:
    """The URLs of the requests that follow."""
    seen: list[str] = []
    page.on("request", lambda each: seen.append(each.url) if each.url.endswith(ending) else None)
    return seen


def sent(opened: Callable[[], Page], url: str, to: str) -> Page:
    """A page that was opened there and sent on. A tab measures once, and what takes seconds counts
    as not there: where the machine stood still then, another tab is opened."""
    for _ in range(TABS):
        page = opened()
        page.goto(url)
        with suppress(TimeoutError):
            page.wait_for_url(to, timeout=WAIT_MS / TABS)
            return page
    raise AssertionError(f"it is not sent to {to}")


def offered(opened: Callable[[], Page], text: str) -> Page:
    """A page that offers another gateway so; as for `sent`."""
    for _ in range(TABS):
        page = opened()
        with suppress(AssertionError):
            expect(page.locator("#nearest")).to_contain_text(text, timeout=WAIT_MS / TABS)
            return page
    raise AssertionError(f"nothing is offered as {text}")


def used(page: Page, url: str) -> Page:
    """One that a person has begun to use before it has measured."""
    with page.expect_request("**/api/gateways"):
        page.goto(url, wait_until="commit")
    page.keyboard.press("Shift")
    return page


def has_settled(page: Page) -> None:
    """It has asked for a token, and has had time to measure."""
    expect(page.locator("#token")).to_be_visible()
    page.wait_for_timeout(4 * FAR_S * 1000)


@pytest.mark.parametrize(
    ("own_ms", "others_ms", "chosen"),
    [
        (180, {"eu": 20}, "eu"),
        (180, {"ap": 90, "eu": 20}, "eu"),
        (180, {"eu": 150}, None),  # not by much: 30 ms, and a fifth
        (300, {"eu": 250}, None),  # 50 ms, and a fifth
        (30, {"eu": 5}, None),  # six times as near, and nobody feels it
        (20, {"eu": 180}, None),
        (20, {}, None),
        (None, {"eu": 20}, None),  # what this one takes is not known
    ],
)
def test_another_gateway_is_chosen_where_it_is_clearly_nearer(
    page_of_one: Page, own_ms: int | None, others_ms: dict[str, int], chosen: str | None
) -> None:
    gateways = [{"region": name, "ms": ms, "is_this": False} for name, ms in others_ms.items()]
    if own_ms is not None:
        gateways.append({"region": "us", "ms": own_ms, "is_this": True})
    found = page_of_one.evaluate(
        "given => import('/page/nearest.js').then((each) => each.nearer(given))", gateways
    )
    assert (found and found["region"]) == chosen


@pytest.fixture(scope="module")
def page_of_one(browser: Browser) -> Iterator[Page]:
    with served(MemorySource()) as gateway:
        page = tab(browser)
        page.goto(gateway.url)
        yield page
        page.context.close()


def test_who_says_no_region_is_sent_to_the_nearest_which_says_so(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None
) -> None:
    answer = tab(browser).goto(us.url)
    assert answer is not None
    policy = answer.header_value("content-security-policy") or ""
    assert policy.endswith(f"; connect-src 'self' {eu.url}")
    page = sent(lambda: tab(browser), us.url, f"{eu.url}/")
    line = page.get_by_role("status").filter(has_text="You were sent to this gateway")
    expect(line).to_be_visible()
    back = line.get_by_role("link", name="Go back to us")
    expect(back).to_have_attribute("href", f"{us.url}/?stay")
    back.focus()
    page.keyboard.press("Enter")
    page.wait_for_url(f"{us.url}/?stay")
    has_settled(page)
    assert page.url == f"{us.url}/?stay"
    measured = asked(page)
    page.goto(us.url)  # the tab remembers it
    has_settled(page)
    assert (page.url, measured) == (f"{us.url}/", [])


def test_two_that_name_each_other_never_send_a_person_to_and_fro(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None
) -> None:
    page = sent(lambda: tab(browser), us.url, f"{eu.url}/")
    eu.delay_s, us.delay_s = FAR_S, 0.0  # the other one is nearer now
    measured = asked(page)
    page.reload()
    has_settled(page)
    assert (page.url, measured) == (f"{eu.url}/", [])


def test_a_browser_that_keeps_nothing_is_sent_once(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None
) -> None:
    page = tab(browser)
    page.add_init_script(
        "Object.defineProperty(window, 'sessionStorage', "
        "{ get() { throw new DOMException('none', 'SecurityError') } })"
    )
    went: list[str] = []
    page.on("framenavigated", lambda frame: went.append(frame.url))
    page.goto(us.url)
    page.wait_for_url(f"{eu.url}/?from=us")
    eu.delay_s, us.delay_s = FAR_S, 0.0
    page.reload()
    has_settled(page)
    assert went == [f"{us.url}/", *[f"{eu.url}/?from=us"] * 2]


async def down(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A proxy whose gateway is not there, which the page could take for one that is."""
    body = b'{"coordinator": "formation"}'
    head = b"HTTP/1.1 502 Bad Gateway\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: %d"
    while await reader.read(65_536):
        writer.write(head % len(body) + b"\r\n\r\n" + body)


async def another_program(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """It has a /health, too."""
    head = b"HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\n"
    while await reader.read(65_536):
        writer.write(head + b"{}")


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()


def test_what_does_not_answer_as_a_gateway_is_passed_over(
    browser: Browser, us: Road, eu: Road
) -> None:
    urls = ["http://127.0.0.1:1", *map(us.beside, (down, another_program, silent))]
    dead = {f"dead-{number}": url for number, url in enumerate(urls)}
    eu.delay_s = FAR_S / 5  # the first of them would be nearer
    us.gateway.restart_beside(Nearest("us", {**dead, "eu": eu.url}))
    sent(lambda: tab(browser), us.url, f"{eu.url}/**")
    us.gateway.restart_beside(Nearest("us", dead))
    page = tab(browser)
    page.goto(us.url)
    until_s = time.monotonic() + WAIT_MS / 1000
    while page.evaluate(KEPT) is None:  # it looks, and stays
        assert time.monotonic() < until_s
        page.wait_for_timeout(50)
    assert page.url == f"{us.url}/"


@pytest.mark.parametrize(
    ("query", "headers"),
    [("?region=us", {}), ("", {"Formation-Region": "us"}), ("?stay", {}), ("?still", {})],
)
def test_with_a_region_said_nothing_is_measured(
    browser: Browser, us: Road, each_names_the_other: None, query: str, headers: dict[str, str]
) -> None:
    page = tab(browser, extra_http_headers=headers)
    measured = asked(page)
    page.goto(f"{us.url}/{query}")
    has_settled(page)
    assert (page.url, measured) == (f"{us.url}/{query}", [])


def test_whose_region_has_another_gateway_stays_there(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None
) -> None:
    page = tab(browser)
    measured = asked(page)
    page.goto(f"{eu.url}/?region=us")  # it is farther, and asked for
    has_settled(page)
    assert (page.url, measured) == (f"{us.url}/?stay", [])


def test_a_region_without_a_gateway_says_nothing(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None
) -> None:
    sent(lambda: tab(browser), f"{us.url}/?region=moon", f"{eu.url}/")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_who_has_begun_to_use_the_page_is_asked(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None, scheme: str
) -> None:
    said = "The gateway eu is nearer to you"
    page = offered(lambda: used(tab(browser, color_scheme=scheme), us.url), said)
    line = page.get_by_role("status").filter(has_text=said)
    expect(line).to_contain_text("ms here")
    assert page.evaluate(CONTRASTS) == {}
    expect(line.get_by_role("link", name="Go there")).to_have_attribute(
        "href", f"{eu.url}/?from=us"
    )
    line.get_by_role("link", name="Go there").focus()
    page.keyboard.press("Tab")
    expect(line.get_by_role("button", name="Stay here")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#nearest")).to_be_empty()
    expect(page.get_by_label("Token")).to_be_focused()
    measured = asked(page)
    page.reload()
    has_settled(page)
    assert (page.url, measured) == (f"{us.url}/", [])


def test_a_token_does_not_go_along(
    browser: Browser, home: Home, network: Network, us: Road, eu: Road, each_names_the_other: None
) -> None:
    rights, ends = frozenset({Right.SUBMIT}), int(time.time()) + 600
    token = make_token(home.identity(), network, rights, ends)
    there: list[str] = []

    def told(request: Request) -> None:
        if request.url.startswith(eu.url):
            there.append(f"{request.url} {request.all_headers()} {request.post_data}")

    def opened() -> Page:
        page = tab(browser)
        page.context.on("requestfinished", told)
        page.goto(f"{us.url}/#token={token}")
        return page

    page = offered(opened, "The gateway eu is nearer to you")
    expect(page.locator("#live")).to_contain_text("Live at edge")
    assert token not in page.locator("#nearest").inner_html()
    page = sent(page.context.new_page, us.url, f"{eu.url}/")  # with the token in a cookie
    has_settled(page)
    assert len(there) > 4
    assert [each for each in there if token in each or "referer" in each.lower()] == []


def test_what_others_wrote_stays_text(
    browser: Browser, us: Road, eu: Road, each_names_the_other: None
) -> None:
    page = tab(browser)
    page.goto(f"{eu.url}/?from={quote(HOSTILE)}")
    line = page.locator("#nearest")
    expect(line).to_have_text("You were sent to this gateway, which is nearer to you.")
    page.wait_for_url(f"{eu.url}/")

    def named(route: Route) -> None:
        own = {"region": "us", "url": "/", "is_this": True}
        other = {"region": HOSTILE, "url": eu.url, "is_this": False}
        route.fulfill(json={"gateways": [own, other], "your_region": ""})

    def opened() -> Page:
        page = tab(browser)
        page.route("**/api/gateways", named)
        return used(page, us.url)

    page = offered(opened, HOSTILE)
    expect(page.locator("#nearest bdi")).to_have_text(HOSTILE)
    assert page.locator("#nearest img").count() == 0
    assert page.evaluate("window.broken") is None
