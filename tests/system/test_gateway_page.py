"""The page of a gateway, in a real browser."""

import asyncio
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect

from formation_p2p import Home, Right
from formation_p2p.features.gateway.sources import ServicesView, WorkerView
from formation_p2p.features.gateway.token import make_token
from formation_p2p.features.services.core.spec import WorkerType
from formation_p2p.workload.core.process import ProcessSpec
from tests.support.browsers import CONTRASTS, ServedGateway, chromium, served
from tests.support.gateways import CATALOG, MemorySource, replica

DESKTOP: Final[dict[str, Any]] = {"viewport": {"width": 1280, "height": 900}}
PHONE: Final[dict[str, Any]] = {
    "viewport": {"width": 360, "height": 780},
    "is_mobile": True,
    "has_touch": True,
}
MISSING: Final = ServicesView(
    CATALOG,
    (
        replica("rag-embeddings", "anna"),
        replica("rag-embeddings", "bob"),
        replica("ner-extraction", "carol"),
        replica("chromadb", "dave", "joining", "it loads its data"),
    ),
)
COVERED: Final = ServicesView(
    CATALOG, tuple(replica(each.name, name) for each in CATALOG for name in ("anna", "bob"))
)
HOSTILE: Final = (
    "<img src=x onerror=window.broken=1>",
    "\u202egnp.exe",
    "'\"><script>window.broken=1</script>",
    "x" * 300,
    "&lt;b&gt;",
)
# A browser on a busy machine: what never comes is told of after this.
WAIT_MS = 60_000
expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened


@pytest.fixture
def gateway() -> Iterator[ServedGateway]:
    with served(MemorySource(MISSING, workers(60))) as opened:
        yield opened


def workers(count: int) -> tuple[WorkerView, ...]:
    rng = random.Random(count)
    kinds = list(WorkerType)
    return tuple(
        WorkerView(
            f"12D3KooW{n:040d}",
            f"machine-{n}",
            kinds[n % len(kinds)],
            "8 cores, 32 GiB, 1 GPU",
            "12 tasks done for us" if n % 3 else "",
            rng.random(),
            n / 10,
        )
        for n in range(count)
    )


def opened(browser: Browser, gateway: ServedGateway, **kind: Any) -> Page:
    page = browser.new_context(**(kind or DESKTOP)).new_page()
    page.set_default_timeout(WAIT_MS)
    page.on("pageerror", lambda error: pytest.fail(f"the page failed: {error}"))
    page.goto(gateway.url)
    expect(page.locator("#services-list details").first).to_be_visible()
    return page


def test_what_is_missing_comes_first_with_the_command_that_helps(
    browser: Browser, gateway: ServedGateway
) -> None:
    page = opened(browser, gateway)
    expect(page.get_by_role("heading", level=1)).to_have_text("We need 2 more GPU workers")
    assert page.title() == "We need 2 more GPU workers"
    expect(page.get_by_text("formation contribute INVITE", exact=True)).to_be_visible()
    titles = page.get_by_role("heading", level=2).all_inner_texts()
    assert titles == ["Services", "Workers", "Jobs and gangs", "Requests", "Network"]
    seen: list[str] = []
    page.on("request", lambda request: seen.append(request.url))
    page.reload()
    page.get_by_role("link", name="API").click()
    expect(page.get_by_role("heading", name="POST /api/jobs", exact=True)).to_be_visible()
    assert [url for url in seen if not url.startswith(gateway.url)] == []


def test_what_scales_and_what_is_updated_is_shown(browser: Browser, gateway: ServedGateway) -> None:
    new = [replace(each, version=2) if each.tier == 2 else each for each in CATALOG]
    replicas = [
        replica(each.name, worker, version=version)
        for each in CATALOG
        for worker, version in (("anna", each.version), ("bob", 2 if each.tier == 2 else 1))
    ]
    gateway.source.view = ServicesView(tuple(new), tuple(replicas), wanted={"chromadb": 3})
    page = opened(browser, gateway)
    scaled, updated = page.locator("#service-chromadb"), page.locator("#service-ner-extraction")
    expect(scaled.locator(".note")).to_have_text("scaled")
    expect(updated.locator(".note")).to_have_text("updating")
    updated.locator("summary").click()
    expect(updated.locator(".why")).to_contain_text("version 2 is replacing an older one: 1 of 2")
    expect(updated.locator("ol").first).to_contain_text("version 1")
    assert page.evaluate(CONTRASTS) == {}


def test_from_red_to_the_reason_by_keyboard(browser: Browser, gateway: ServedGateway) -> None:
    page = opened(browser, gateway)
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to what is missing")).to_be_focused()
    gap = page.get_by_role("link", name="chromadb")
    for _ in range(20):
        page.keyboard.press("Tab")
        if gap.evaluate("each => each === document.activeElement"):
            break
    outline = gap.evaluate("each => getComputedStyle(each).outlineStyle")
    assert outline == "solid", "a person sees where the keyboard is"
    page.keyboard.press("Enter")
    details = page.locator("#service-chromadb")
    expect(details.get_by_text("dave is joining: it loads its data").first).to_be_visible()
    expect(details.locator("summary")).to_be_focused()
    page.keyboard.press("Enter")
    expect(details.locator(".why")).to_be_hidden()


# Words of a table that stand in two lines, but for names and ids.
BROKEN: Final = """() => [...document.querySelectorAll("th, .kind, .state, #workers-table .id")]
  .filter((each) => each.checkVisibility() && each.textContent.trim())
  .filter((each) => {
    const range = document.createRange();
    range.selectNodeContents(each);
    return new Set([...range.getClientRects()].map((rect) => Math.round(rect.top))).size > 1;
  })
  .map((each) => each.textContent)"""


@pytest.mark.parametrize(
    ("width", "scheme"),
    [(390, "light"), (390, "dark"), (768, "light"), (1280, "dark"), (1920, "light")],
)
def test_it_is_readable(browser: Browser, gateway: ServedGateway, width: int, scheme: str) -> None:
    size = {"viewport": {"width": width, "height": 900}}
    gateway.run(
        gateway.server.gateway.jobs.submit([ProcessSpec(("uname", "-a"))], ["uname"], "uname", {})
    )
    for count in (0, 3, 300):
        gateway.source.seen_workers = workers(count)
        page = opened(browser, gateway, color_scheme=scheme, **size)
        page.locator("#network").scroll_into_view_if_needed()
        expect(page.locator("#ring circle.dot")).to_have_count(count)
        expect(page.locator("#workers-table tbody tr")).to_have_count(min(count, 25))
        page.locator("summary").first.evaluate("each => each.click()")
        page.get_by_role("button", name="uname").evaluate("each => each.click()")
        expect(page.locator("#job")).to_be_visible()
        assert page.evaluate(CONTRASTS) == {}
        assert page.evaluate(BROKEN) == []
        shown = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
        assert shown[0] <= shown[1], "nothing is cut off at the side"
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(18, 22, 26)") == (scheme == "dark")
        page.context.close()


@pytest.mark.parametrize(
    ("joining", "alone", "said"),
    [
        (0, 1, "1 service has only one worker"),
        (0, 5, "5 services have only one worker"),
        (1, 0, "1 service is starting"),
        (5, 0, "5 services are starting"),
        (1, 1, "1 service is starting, and 1 has only one worker"),
        (2, 3, "2 services are starting, and 3 have only one worker"),
    ],
)
def test_what_nobody_has_to_mend_is_said_as_people_say_it(
    browser: Browser, gateway: ServedGateway, joining: int, alone: int, said: str
) -> None:
    names = [each.name for each in CATALOG]
    ready = [replica(name, "anna") for name in names[joining:]]
    ready += [replica(name, "bob") for name in names[joining + alone :]]
    starting = [replica(name, "anna", "joining") for name in names[:joining]]
    gateway.source.view = ServicesView(CATALOG, (*ready, *starting))
    page = opened(browser, gateway)
    expect(page.get_by_role("heading", level=1)).to_have_text(said)


def test_a_job_shows_its_tasks_and_what_they_print(
    browser: Browser, gateway: ServedGateway
) -> None:
    specs, labels = [ProcessSpec(("sh",))] * 2, ["train-0", "train-1"]
    gateway.run(gateway.server.gateway.jobs.submit(specs, labels, "train", {}))
    [job] = gateway.source.jobs
    page = opened(browser, gateway)
    page.locator("#jobs").scroll_into_view_if_needed()
    page.get_by_role("button", name="train").click()
    shown = page.locator("#job")
    expect(shown).to_contain_text("0 of 2 tasks done")

    def told(*events: dict[str, str] | None) -> None:
        for event in events:
            gateway.call(partial(job.told.put_nowait, event))

    told({"event": "printed", "task_id": "job0/0", "text": "<b>epoch 1</b>"})
    first = shown.locator("li").first
    expect(first.locator("pre")).to_have_text("<b>epoch 1</b>")
    expect(first).to_contain_text("running")
    told({"event": "succeeded", "task_id": "job0/0"}, {"event": "failed", "task_id": "job0/1"})
    failed = {"task_id": "job0/1", "status": "failed", "error": "no lr", "ran_ms": 1200}
    job.ended = [{"task_id": "job0/0", "status": "succeeded", "exit_code": 0}, failed]
    told(None)
    expect(shown).to_contain_text("2 of 2 tasks done")
    expect(shown.locator("li").first).to_have_text("train-1failed1.2 sno lr")
    shown.get_by_role("button", name="Close").click()
    expect(shown).to_be_hidden()


def test_what_readers_of_screens_hear(browser: Browser, gateway: ServedGateway) -> None:
    page = opened(browser, gateway)
    for name in ("Services", "Workers", "Jobs and gangs", "Requests", "Network"):
        expect(page.get_by_role("region", name=name, exact=True)).to_have_count(1)
    page.locator("#network").scroll_into_view_if_needed()
    ring = page.get_by_role("img", name="The ring of keys with 60 workers: 15 gpu, 15 cpu")
    expect(ring).to_be_visible()
    table = page.get_by_role("table", name="Who gives what, and what they serve")
    assert table.get_by_role("columnheader").all_inner_texts() == [
        "Name", "Type", "Gives", "Gave", "Serves",
    ]  # fmt: skip
    nameless = page.evaluate(
        "[...document.querySelectorAll('button, a, input')].filter(each => "
        "each.checkVisibility() && !(each.textContent.trim() || each.ariaLabel)).length"
    )
    assert nameless == 0


def test_names_that_others_chose_stay_text(browser: Browser, gateway: ServedGateway) -> None:
    someone = workers(1)[0]
    gateway.source.seen_workers = tuple(replace(someone, name=name) for name in HOSTILE)
    hostile = replica("chromadb", HOSTILE[0], "joining", HOSTILE[2])
    gateway.source.view = ServicesView(CATALOG, (hostile,))
    page = opened(browser, gateway, **PHONE)
    page.locator("#workers").scroll_into_view_if_needed()
    cells = page.locator("#workers-table bdi")
    expect(cells).to_have_count(len(HOSTILE))
    assert tuple(cells.all_text_contents()) == HOSTILE
    expect(page.locator("#gaps")).to_contain_text(HOSTILE[2])
    assert page.evaluate("window.broken") is None
    assert page.locator("main img, main script").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_it_lives_says_when_it_does_not_and_comes_back(
    browser: Browser, gateway: ServedGateway
) -> None:
    page = opened(browser, gateway)
    page.locator("#service-llm-inference summary").click()
    gateway.source.view = COVERED
    title = page.get_by_role("heading", level=1)
    expect(title).to_have_text("All 5 services are covered")
    details = page.locator("#service-llm-inference")
    expect(details.get_by_text("2 of 2 workers are ready").first).to_be_visible()
    expect(details.locator("ol").last.locator("li")).to_have_count(2)  # its history
    page.locator("#jobs").scroll_into_view_if_needed()
    answer = page.request.post(gateway.url + "/api/jobs", data={"argv": ["uname"]})
    assert answer.status == 202
    expect(page.locator("#jobs-table")).to_contain_text("running")
    expect(page.locator("#requests-table")).to_contain_text("/api/jobs")

    gateway.stop()
    alert = page.get_by_role("alert").filter(has_text="Connection lost")
    expect(alert).to_be_visible()
    assert [each for each in page.evaluate(CONTRASTS) if "Connection lost" in each] == []
    expect(page.locator("#live")).to_have_text("Not connected")
    gateway.start()
    expect(alert).to_be_hidden()
    expect(page.locator("#live")).to_contain_text("Live at edge")


def test_a_thousand_workers_come_in_pages(browser: Browser, gateway: ServedGateway) -> None:
    gateway.source.seen_workers = workers(1000)
    opened(browser, gateway).context.close()  # the gateway has read its files and its network
    page = browser.new_context(**DESKTOP).new_page()
    page.goto(gateway.url)
    page.locator("#network").scroll_into_view_if_needed()
    expect(page.locator("#ring circle.dot")).to_have_count(1000)
    expect(page.locator("#workers-count")).to_have_text("1000 workers")
    expect(page.locator("#workers-table")).to_contain_text("0.7 ms from here")
    payload = page.evaluate(
        "performance.getEntries().reduce((sum, each) => sum + (each.transferSize ?? 0), 0)"
    )
    assert payload <= 200_000
    table = page.locator("#workers-table tbody tr")
    expect(table).to_have_count(25)
    following = page.get_by_role("button", name="Next workers")
    following.focus()
    page.keyboard.press("Enter")
    expect(page.locator("#workers-pager")).to_contain_text("26 to 50 of 1000")
    expect(following).to_be_focused()


def test_a_page_of_a_service_cannot_use_the_gateway(
    browser: Browser, gateway: ServedGateway
) -> None:
    """It is a program of somebody else, at the gateway's own host and port."""
    script = b"""<!doctype html><title>mine</title><p id=said>nothing</p><script>
      const body = '{"argv": ["id"]}';
      const post = {method: "POST", headers: {"content-type": "text/plain"}, body};
      const tries = [fetch("/api/jobs", post), fetch("/api/jobs", {...post, mode: "no-cors"}),
        fetch("/api/overview").then((each) => each.text())];
      let cookie;
      try { cookie = document.cookie } catch (error) { cookie = error.name }
      Promise.allSettled(tries).then((all) => {
        const read = [all[0], all[2]].map((each) => each.status);
        document.getElementById("said").textContent = [origin, ...read, cookie].join(" ");
      });
    </script>"""

    async def hostile(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n"
        while await reader.read(65_536):  # a head, and a small body, come at once
            writer.write(head % len(script) + script)
        writer.close()

    async def listening() -> asyncio.Server:
        return await asyncio.start_server(hostile, "127.0.0.1", 0)

    server = gateway.run(listening())
    gateway.source.ports["llm-inference"] = {"A": server.sockets[0].getsockname()[1]}
    page = browser.new_context(**DESKTOP).new_page()
    page.goto(gateway.url + "/service/llm-inference/")
    expect(page.locator("#said")).to_have_text("null rejected rejected SecurityError")
    assert gateway.source.jobs == []
    port = gateway.server.address[1]
    page.goto(f"http://llm-inference.localhost:{port}/")
    said = page.locator("#said")
    # Its own origin, where /api is its own too.
    expect(said).to_contain_text(f"http://llm-inference.localhost:{port} fulfilled fulfilled")
    assert gateway.source.jobs == []
    gateway.call(server.close)


def test_a_still_picture_is_whole(browser: Browser, gateway: ServedGateway) -> None:
    page = browser.new_context(**DESKTOP).new_page()
    page.goto(gateway.url + "/?still")
    expect(page.locator("#ring circle.dot")).to_have_count(60)
    expect(page.locator("#services-list details")).to_have_count(len(CATALOG))
    assert gateway.server.gateway.observed.watching == 0


def test_elsewhere_the_page_asks_for_a_token_once(browser: Browser, tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.create_network()
    network, identity = home.network(), home.identity()
    assert network is not None
    soon = int(time.time()) + 600
    token = make_token(identity, network, frozenset({Right.SUBMIT}), soon)
    with served(MemorySource(MISSING, workers(3)), network) as gateway:
        context = browser.new_context(**DESKTOP)
        page = context.new_page()
        page.goto(gateway.url)
        field = page.get_by_label("Token")
        expect(field).to_be_focused()
        field.fill(token[:-8])
        page.keyboard.press("Enter")
        expect(page.locator("#token-problem")).to_contain_text("altered")
        field.fill(token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("We need 2 more GPU workers")
        expect(page.locator("#live")).to_contain_text("Live at edge")
        page.reload()
        expect(page.locator("#live")).to_contain_text("Live at edge")
        assert token not in page.content() + page.evaluate("document.cookie")
        other = browser.new_context(**DESKTOP).new_page()
        other.goto(f"{gateway.url}/#token={token}")
        expect(other.locator("#live")).to_contain_text("Live at edge")
        assert other.url == gateway.url + "/"
        theirs = make_token(identity, network, frozenset({Right.SUBMIT}), soon, "of another")
        asked: list[str] = []

        def said(dialog: Dialog) -> None:
            asked.append(dialog.message)
            dialog.dismiss()

        other.on("dialog", said)
        other.goto("about:blank")
        other.goto(f"{gateway.url}/#token={theirs}")
        expect(other.locator("#live")).to_contain_text("Live at edge")
        assert asked == ["Use the token of this address in place of yours?"]
        assert [each["value"] for each in other.context.cookies()] == [token]
