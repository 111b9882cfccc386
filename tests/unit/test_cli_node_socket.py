"""What `formation top` and `formation logs` hear from the nodes of a home."""

import json
import socket
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner

from formation_p2p.command.main import app
from formation_p2p.command.node_socket import answer, any_runs, events_of_all, sockets_of
from formation_p2p.command.top import _look
from formation_p2p.core.errors import LocalError
from formation_p2p.rpc.wire import VERSION, encoded, told


def node(path: Path, name: str, leaves: threading.Event, **more: object) -> None:
    """Tells whoever asks for events one thing, and closes when it leaves."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def answer(client: socket.socket) -> None:
        with client, suppress(EOFError):
            assert told(client) == {"formation": VERSION, "ask": "events"}
            client.sendall(encoded({"formation": VERSION, "has": True}))
            assert told(client).keys() == {"job", "follow"}
            client.sendall(encoded({"is": [{"event": name, **more}]}))
            leaves.wait()

    def serve() -> None:
        with listener:
            while True:
                client, _ = listener.accept()
                threading.Thread(target=answer, args=(client,), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def test_who_follows_hears_of_nodes_that_begin_later(tmp_path: Path) -> None:
    leaves = threading.Event()
    node(tmp_path / "node-0.sock", "first", leaves)
    reported = events_of_all(tmp_path, "", follow=True)
    assert next(reported) == {"event": "first"}
    node(tmp_path / "node-1.sock", "second", leaves)
    assert next(reported) == {"event": "second"}
    (tmp_path / "node-0.sock").unlink()
    (tmp_path / "node-1.sock").unlink()
    leaves.set()
    assert list(reported) == []


def test_who_does_not_follow_hears_of_those_that_run(tmp_path: Path) -> None:
    leaves = threading.Event()
    leaves.set()
    for number in range(2):
        node(tmp_path / f"node-{number}.sock", str(number), leaves)
    reported = events_of_all(tmp_path, "", follow=False)
    assert sorted(line["event"] for line in reported) == ["0", "1"]
    with pytest.raises(LocalError, match="no node runs from"):
        next(events_of_all(tmp_path / "elsewhere", "", follow=True))


def test_events_that_were_missed_are_told_beside_the_others(tmp_path: Path) -> None:
    leaves = threading.Event()
    leaves.set()
    node(tmp_path / "node-0.sock", "missed", leaves, events=7)
    env = {"FORMATION_HOME": str(tmp_path)}
    done = CliRunner().invoke(app, ["logs"], env=env)
    assert (done.exit_code, done.stdout) == (1, "")
    assert done.stderr == "formation: 7 events came faster than they could be shown\n"
    done = CliRunner().invoke(app, ["logs", "--json"], env=env)
    assert (done.exit_code, json.loads(done.stdout)) == (1, {"event": "missed", "events": 7})


def test_a_node_that_leaves_while_it_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = tmp_path / "node-0.sock"
    monkeypatch.setattr("formation_p2p.command.node_socket.sockets_of", lambda _: [gone])
    assert _look(tmp_path, with_workers=True) == {"nodes": [], "workers": [], "online": []}


def ending(path: Path) -> None:
    """A node that ends between the look for its socket and the question: it closes unread."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        listener.accept()[0].close()
        client, _ = listener.accept()
        client.recv(1, socket.MSG_PEEK)
        listener.close()
        client.close()

    threading.Thread(target=serve, daemon=True).start()


def test_a_node_that_ends_before_it_answers_has_left(tmp_path: Path) -> None:
    ending(tmp_path / "node-0.sock")
    [path] = sockets_of(tmp_path)
    assert answer(path, "status") == {}
    assert not any_runs(tmp_path)


def test_a_node_that_runs_and_does_not_answer_is_told(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "node-0.sock"))
        listener.listen()
        closes = threading.Thread(target=closes_each, args=(listener, 2), daemon=True)
        closes.start()
        [path] = sockets_of(tmp_path)
        with pytest.raises(LocalError, match="does not answer"):
            answer(path, "status")
        assert any_runs(tmp_path)


def closes_each(listener: socket.socket, clients: int) -> None:
    for _ in range(clients):
        client, _ = listener.accept()
        client.close()


def test_a_node_of_another_version_that_has_no_such_answer_is_told_by_its_version(
    tmp_path: Path,
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "node-0.sock"))
        listener.listen()

        def greet() -> None:
            client, _ = listener.accept()
            with client:
                told(client)
                client.sendall(encoded({"formation": "0.0.1/2", "has": False}))

        greets = threading.Thread(target=greet, daemon=True)
        greets.start()
        with pytest.raises(LocalError, match=r"another version \(0\.0\.1/2, and this is "):
            answer(tmp_path / "node-0.sock", "story", task="a/0")
        greets.join()
