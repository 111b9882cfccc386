"""The URL of a gateway with a token, where an invite is expected."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from formation_p2p.command.flags import read_invite
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.identity import Identity
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import parse_invite

ROOT = Identity.from_seed(bytes(32))
GRANT = issue(ROOT, Rights(2**31))
TOKEN = base64.urlsafe_b64encode(GRANT).decode().rstrip("=")
GATE = f"/ip4/192.0.2.1/tcp/4001/p2p/{Identity.from_seed(b'gate' * 8).peer_id}"
FACTS = json.dumps({"root_public_key": ROOT.public_key.hex(), "gates": [GATE]}).encode()


@contextmanager
def serving(body: bytes) -> Iterator[str]:
    """What answers every GET with `body`, and fails the test where it is told the token."""
    told: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            told.append(self.requestline + str(self.headers))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
    assert TOKEN not in "".join(told)


@pytest.mark.parametrize("form", ["{}/#{}", "{}#{}", "{}/?token={}"])
def test_a_gateways_url_with_a_token_is_an_invite(form: str) -> None:
    with serving(FACTS) as url:
        network = parse_invite(read_invite(form.format(url, TOKEN)))
    assert (network.root_public_key, network.gates, network.grant) == (
        ROOT.public_key,
        (GATE,),
        GRANT,
    )


def test_a_gateway_that_names_another_root_key_gains_nothing() -> None:
    mallory = Identity.from_seed(b"evil" * 8)
    facts = json.dumps({"root_public_key": mallory.public_key.hex(), "gates": [GATE]}).encode()
    with serving(facts) as url, pytest.raises(InvalidInput) as raised:
        read_invite(f"{url}/#{TOKEN}")
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"\xff", b'{"gates": 1}', b"x" * 70_000])
def test_what_is_no_gateway_is_said(body: bytes) -> None:
    with serving(body) as url, pytest.raises(LocalError, match="not a gateway of this version"):
        read_invite(f"{url}/#{TOKEN}")


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://192.0.2.1:8080", "has no token; write it like"),
        ("http:///#abc", "has no token"),
        ("http://192.0.2.1/#a%b", "incomplete or was altered"),
        ("http://192.0.2.1/#a", "incomplete or was altered"),
    ],
)
def test_a_url_without_a_good_token_is_refused_before_anything_is_asked(
    url: str, problem: str
) -> None:
    with pytest.raises(InvalidInput, match=problem):
        read_invite(url)


def test_where_nothing_answers_that_is_said() -> None:
    with serving(b"") as url:
        pass
    with pytest.raises(LocalError, match="is `formation gateway` running there"):
        read_invite(f"{url}/#{TOKEN}")
