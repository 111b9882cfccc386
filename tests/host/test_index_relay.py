"""What the relay of a build passes on of package indexes, asked without a sandbox."""

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import trio
import trio.testing

from formation_p2p.drivers.index_relay import (
    MAX_CONNECTIONS,
    MAX_PAGES,
    PORT,
    IndexRelay,
    _may_lead_to,
    address_of,
    named,
)
from formation_p2p.environments.cache import seal_key
from tests.support.drivers_world import within
from tests.support.packages import HANGS_S, Index, an_index, wheel

INDEX = "https://ann:secret@index.test/simple"
PAGE = "https://index.test/simple/greet/"
GREET = wheel("greet", "1.0", {"greet.py": ""})


@pytest.fixture
def relay() -> IndexRelay:
    return IndexRelay((INDEX,), bytes(32))


def key_of(index: str) -> str:
    return urlsplit(address_of(index)).path.strip("/")


def links(page: bytes) -> list[str]:
    return re.findall(r'href="([^"]*)"', page.decode(), re.IGNORECASE)


def leads_to(relay: IndexRelay, link: str) -> str:
    found = relay.request(urlsplit(link).path)
    return "" if found is None else found[0]


@pytest.mark.parametrize(
    ("page", "leads"),
    [
        ('<a href="a-1.whl">', "https://index.test/simple/greet/a-1.whl"),
        ("<a data-x='1' href='../../f/a-1.whl#sha256=ab'>", "https://index.test/f/a-1.whl"),
        ('<A HREF="https://files.test/a-1.whl?x=1&amp;y=2">', "https://files.test/a-1.whl?x=1&y=2"),
        ('<base href="https://files.test/f/"><a href="a-1.whl">', "https://files.test/f/a-1.whl"),
        ('<a href="file:///etc/passwd">', ""),
        ('<a href="ftp://files.test/a-1.whl">', ""),
    ],
)
def test_the_files_that_a_page_names_can_be_had(relay: IndexRelay, page: str, leads: str) -> None:
    (link,) = links(relay.page(key_of(INDEX), PAGE, "text/html", page.encode()))
    assert leads_to(relay, link) == leads
    assert link.startswith(f"http://127.0.0.1:{PORT}/") == bool(leads)
    assert ("#sha256=ab" in link) == ("sha256" in page)
    if leads:
        assert leads_to(relay, f"{link.partition('#')[0]}.metadata") == f"{leads}.metadata"


def test_a_page_of_json_names_files_as_well(relay: IndexRelay) -> None:
    page = {
        "name": "greet",
        "files": [{"filename": "a-1.whl", "url": "https://files.test/a-1.whl"}],
    }
    kind = "application/vnd.pypi.simple.v1+json"
    read = json.loads(relay.page(key_of(INDEX), PAGE, kind, json.dumps(page).encode()))
    assert leads_to(relay, read["files"][0]["url"]) == "https://files.test/a-1.whl"
    deep = b'{"files": ' + b"[" * 100_000
    for wrong in (b"{", b"[]", b'{"files": 1}', deep):
        with pytest.raises(ValueError, match=r"files|Expecting"):
            relay.page(key_of(INDEX), PAGE, kind, wrong)


def test_nothing_else_can_be_had(relay: IndexRelay) -> None:
    (link,) = links(relay.page(key_of(INDEX), PAGE, "text/html", b'<a href="a-1.whl">'))
    other = IndexRelay((INDEX,), b"other".ljust(32))
    assert leads_to(other, link) == ""
    _, key, seal, coded, name = urlsplit(link).path.split("/")
    for path in (
        f"/{key}/{seal}/{coded[:-4]}/{name}",
        f"/{key}/{'0' * 32}/{coded}/{name}",
        f"/{key}/{seal}/%%%/{name}",
        f"/{key}/\xe9{seal}/{coded}/{name}",
        f"/{'0' * 16}/greet/",
        f"/{key}/..%2f/",
        f"/{key}/greet",
        f"/{key}/a b/",
        "/",
        "x",
        "http://127.0.0.1:80/",
    ):
        assert relay.request(path) is None, path
    assert relay.request(f"/{key}/greet/") == (f"{INDEX}/greet/", key, True)


@pytest.mark.parametrize("first", ["", "<a ", "<base "])
@pytest.mark.parametrize(
    "tag", ["<a ", "<base ", "<a href=", "<a href='", "href", "href='", "href "]
)
def test_a_page_of_open_tags_takes_no_longer_than_its_length(
    relay: IndexRelay, first: str, tag: str
) -> None:
    """No other thread of the node runs while a pattern is looked for."""
    before_s = time.thread_time()
    relay.page(key_of(INDEX), PAGE, "text/html", f"{first}{tag * 20_000}".encode())
    assert time.thread_time() - before_s < 2.0


class Counting(IndexRelay):
    """Of pages that are written anew at once."""

    under_way = most = 0

    def page(self, key: str, url: str, kind: str, content: bytes) -> bytes:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        time.sleep(0.05)  # in which others would begin
        self.under_way -= 1
        return super().page(key, url, kind, content)


def test_few_pages_of_a_build_take_memory_at_once(index: Index) -> None:
    relay = Counting((index.url,), bytes(32))
    path = urlsplit(address_of(index.url)).path
    answers = []

    def ask() -> None:
        ours, theirs = socket.socketpair()
        with ours, ours.makefile("rb") as answer:
            ours.sendall(f"GET {path}/greet/ HTTP/1.1\r\nConnection: close\r\n\r\n".encode())
            relay.answer(theirs)
            answers.append(answer.readline())

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert answers == [b"HTTP/1.1 200 OK\r\n"] * 8
    assert relay.most <= MAX_PAGES


def test_a_page_that_names_no_address_is_an_error_in_words(
    index: Index, ask: Callable[[str], tuple[int, bytes]]
) -> None:
    index.pages["greet"] = '<a href="http://[\u2603]/a-1.whl">'
    path = urlsplit(address_of(index.url)).path
    assert ask(f"GET {path}/greet/ HTTP/1.1")[0] == 502


def test_people_read_the_address_of_the_index() -> None:
    printed = f"error at {address_of(INDEX)}/greet/".encode()
    assert named((INDEX,), printed) == b"error at https://index.test/simple/greet/"


def test_addresses_stay_the_same_for_the_next_build(tmp_path: Path) -> None:
    key = seal_key(tmp_path / "seal")
    assert seal_key(tmp_path / "seal") == key
    assert (tmp_path / "seal").stat().st_mode & 0o777 == 0o600
    (tmp_path / "seal").write_bytes(b"torn")
    assert len(seal_key(tmp_path / "seal")) == 32


@pytest.fixture
def index() -> Iterator[Index]:
    with an_index() as index:
        index.add(GREET)
        yield index


@pytest.fixture
def ask(index: Index) -> Iterator[Callable[[str], tuple[int, bytes]]]:
    """A request of the sandbox, on a connection of its own; the answer's status and content."""
    relay = IndexRelay((index.url.replace("//", "//ann:secret@"),), bytes(32))
    threads = []

    def asked(request: str) -> tuple[int, bytes]:
        ours, theirs = socket.socketpair()
        thread = threading.Thread(target=relay.answer, args=(theirs,))
        thread.start()
        threads.append(thread)
        with ours, ours.makefile("rb") as answer:
            ours.sendall(f"{request}\r\nConnection: close\r\n\r\n".encode())
            head, _, content = answer.read().partition(b"\r\n\r\n")
        return int(head.split()[1]), content

    yield asked
    for thread in threads:
        thread.join()


def test_the_node_asks_with_the_login_of_the_index_and_no_other_server(
    index: Index, ask: Callable[[str], tuple[int, bytes]]
) -> None:
    index.login = "ann:secret"
    path = urlsplit(address_of(index.url)).path
    status, page = ask(f"GET {path}/greet/ HTTP/1.1")
    assert status == 200
    file = urlsplit(links(page)[0]).path
    assert ask(f"GET {file} HTTP/1.1") == (200, GREET[1])
    assert ask(f"HEAD {file} HTTP/1.1") == (200, b"")
    assert ask(f"GET {path}/absent/ HTTP/1.1")[0] == 404
    assert ask("GET /elsewhere/ HTTP/1.1")[0] == 404
    assert ask(f"POST {path}/greet/ HTTP/1.1")[0] == 501
    with an_index() as other:  # a page names a file of a server that has a login of its own
        other.login = "bob:other"
        other.add(GREET)
        with_login = index.url.replace("//", "//ann:secret@")
        relay = IndexRelay((with_login, other.url), bytes(32))
        with relay.open(f"{other.url}/greet/", key_of(other.url), {}) as answer:
            assert answer.status == 401


@pytest.mark.parametrize("is_redirected", [False, True])
def test_an_index_leads_to_no_service_of_the_machine_but_itself(
    index: Index, *, is_redirected: bool
) -> None:
    """Of which some trust whoever is on the machine."""
    with an_index() as service:
        service.add(GREET)
        ours = IndexRelay((index.url,), bytes(32))
        named = f"{service.url}/greet/"
        if is_redirected:
            index.redirects["greet"] = named
            named = f"{index.url}/greet/"
        with pytest.raises(ValueError, match=r"leads to 127\.0\.0\.1"):
            ours.open(named, key_of(index.url), {})
        assert not service.asked


def test_a_redirect_leads_to_http_alone(index: Index) -> None:
    ours = IndexRelay((index.url,), bytes(32))
    index.redirects["greet"] = "ftp://127.0.0.1/a-1.whl"
    with pytest.raises(OSError, match="unknown url type: ftp"):
        ours.open(f"{index.url}/greet/", key_of(index.url), {})
    index.redirects["greet"] = "file:///etc/passwd"
    with ours.open(f"{index.url}/greet/", key_of(index.url), {}) as answer:
        assert answer.status == 302


def test_what_one_index_names_at_the_server_of_another_is_asked_for_without_its_login() -> None:
    other = "https://other.test/simple"
    relay = IndexRelay((INDEX, other), bytes(32))
    assert relay._login(PAGE, INDEX) is not None
    assert relay._login(PAGE, other) is None


# As NAT64, 6to4, Teredo and older forms write loopback, this host, or the service of a cloud.
LOOPBACK_IN_DISGUISE = (
    *("64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::127.0.0.1", "64:ff9b::0.0.0.0"),
    *("2002:7f00:1::1", "2002:a9fe:a9fe::1", "::127.0.0.1", "::ffff:0:127.0.0.1", "::ffff:0.0.0.0"),
    *("2001:0:4136:e378:8000:63bf:80ff:fffe", "64:ff9b:1:7f00:0:100::", "::ffff:169.254.1.1"),
)


@pytest.mark.parametrize(
    ("index", "address", "may"),
    [
        ("https://1.1.1.1/simple", "8.8.8.8", True),
        ("https://1.1.1.1/simple", "10.0.0.1", False),
        ("https://1.1.1.1/simple", "169.254.169.254", False),
        ("https://1.1.1.1/simple", "::ffff:127.0.0.1", False),
        ("https://1.1.1.1/simple", "fd00::1", False),
        ("https://10.0.0.1/simple", "10.0.0.2", True),
        ("https://10.0.0.1/simple", "fe80::1%eth0", False),
        ("https://10.0.0.1/simple", "0.0.0.0", False),
        ("https://10.0.0.1/simple", "127.0.0.2", False),
        ("https://10.0.0.1/simple", "::ffff:10.0.0.2", True),
        ("https://10.0.0.1/simple", "64:ff9b::10.0.0.2", True),
        *(("https://10.0.0.1/simple", each, False) for each in LOOPBACK_IN_DISGUISE),
    ],
)
def test_who_is_outside_leads_to_no_place_inside(index: str, address: str, *, may: bool) -> None:
    assert _may_lead_to(index, address) == may


def test_a_request_of_a_build_takes_little_memory(relay: IndexRelay) -> None:
    """Python itself would keep a hundred lines of 64 KiB of each."""
    ours, theirs = socket.socketpair()
    thread = threading.Thread(target=relay.answer, args=(theirs,))
    thread.start()
    lines = [b"x-%d: %s\r\n" % (number, b"x" * 60_000) for number in range(90)]
    with ours, pytest.raises((BrokenPipeError, ConnectionResetError)):
        ours.sendall(b"GET / HTTP/1.1\r\n" + b"".join(lines))
    thread.join()


def test_connections_that_a_build_opens_take_few_descriptors_of_the_node(relay: IndexRelay) -> None:
    ours, supervisors = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    more = 200

    def hands_over(listener: socket.socket) -> None:
        number = supervisors.recv(8)[-1]
        socket.send_fds(supervisors, [bytes([0, number])], [listener.fileno()])

    async def story() -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=MAX_CONNECTIONS + more) as listener:
            relay.ports.attach(ours)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(trio.to_thread.run_sync, hands_over, listener)
                ready = trio.Event()
                nursery.start_soon(relay.serve, ready.set)
                await ready.wait()
                made = [
                    await trio.open_tcp_stream(*listener.getsockname())
                    for _ in range(MAX_CONNECTIONS + more)
                ]
                await trio.testing.wait_all_tasks_blocked(0.1)
                taken = sum(
                    each.laddr == listener.getsockname() and each.status == "ESTABLISHED"
                    for each in psutil.Process().net_connections("tcp")
                )
                assert 0 < taken <= MAX_CONNECTIONS
                await made.pop(0).aclose()
                async with made[-1] as last:
                    for each in made[:-1]:
                        await each.aclose()
                    await last.send_all(b"GET / HTTP/1.1\r\n\r\n")
                    assert b" 404 " in await last.receive_some()
                nursery.cancel_scope.cancel()

    with ours, supervisors:
        within(HANGS_S, story)
