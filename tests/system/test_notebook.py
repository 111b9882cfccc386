"""A node in a notebook: cells run one after the other in a kernel of ipykernel, as Jupyter does."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from queue import Empty
from textwrap import dedent
from typing import Final

import pytest
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.manager import start_new_kernel

from tests.support.sandboxes import besides_warning

# A cell that joins a network imports for some seconds, on a busy machine for many.
CELL_S: Final = 180
BEGIN: Final = """
    from pathlib import Path
    from formation_p2p import Home, Limits, Node, SyncNode
    home = Home(Path({home!r}))
    home.create_network()
    node = await Node.join(home=home.path, listen=["/ip4/127.0.0.1/tcp/0"])
    home.add_gate(node.addresses[0])
    hardware = await node.worker(limits=Limits(cpu_milli=2000, memory_bytes=2**30))
    small = dict(needs="cpu=1,memory=64MiB")
"""


@dataclass
class Cell:
    """What a cell showed. `value` is that of its last line; `error` what it raised."""

    stdout: str = ""
    stderr: str = ""
    value: str = ""
    error: str = ""


@dataclass
class Notebook:
    kernel: BlockingKernelClient
    cells: list[Cell] = field(default_factory=list)

    def run(self, source: str) -> Cell:
        cell = Cell()
        self.cells.append(cell)
        number = self.kernel.execute(dedent(source))
        while True:
            try:
                message = self.kernel.get_iopub_msg(timeout=CELL_S)
            except Empty:
                raise AssertionError(f"the cell hangs: {source}, after {cell}") from None
            if message["parent_header"].get("msg_id") != number:
                continue
            content = message["content"]
            match message["msg_type"]:
                case "stream":
                    name = content["name"]
                    setattr(cell, name, getattr(cell, name) + content["text"])
                case "execute_result":
                    cell.value = content["data"]["text/plain"]
                case "error":
                    cell.error = f"{content['ename']}: {content['evalue']}"
                case "status" if content["execution_state"] == "idle":
                    cell.stderr = besides_warning(cell.stderr)
                    return cell


@pytest.fixture(scope="module")
def notebook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One whose first cell has joined a network and works for it."""
    manager, client = start_new_kernel(startup_timeout=CELL_S, kernel_name="python3")
    try:
        notebook = Notebook(client)
        home = tmp_path_factory.mktemp("notebook") / "home"
        begun = notebook.run(BEGIN.format(home=str(home)))
        assert begun == Cell(), begun
        yield notebook
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
    assert not manager.is_alive(), "it does not end while its node is open"


def test_a_function_of_a_cell_runs_on_a_worker(notebook: Notebook) -> None:
    notebook.run("def double(n):\n    return 2 * n * factor\nfactor = 10")
    assert notebook.run("await node.map(double, range(3), **small)").value == "[0, 20, 40]"
    notebook.run("factor = 100")
    streamed = "[n async for n in node.map(double, range(3), **small)]"
    assert notebook.run(streamed).value == "[0, 200, 400]"
    pooled = "with node.executor(**small) as pool: print(pool.submit(double, 4).result())"
    assert notebook.run(pooled).stdout == "800\n"


def test_a_node_without_await_works_in_a_cell_as_well(notebook: Notebook) -> None:
    notebook.run(
        """
        import tempfile, time
        from formation_p2p import Rights
        invite = home.invite(Rights(int(time.time()) + 3600))
        script = SyncNode.join(invite, home=tempfile.mkdtemp(), listen=())
        while not script.workers(): time.sleep(0.05)
        """
    )
    assert notebook.run("script.map(abs, [-1, -2], **small)").value == "[1, 2]"
    assert notebook.run("script.close()") == Cell()
    assert notebook.run("script.workers()").error.startswith("NodeClosed: the node is closed; join")


def test_a_closed_node_says_so_in_the_next_cell(notebook: Notebook) -> None:
    notebook.run("other = await Node.join(home=home.path, listen=())\nawait other.close()")
    closed = "NodeClosed: the node is closed; join again"
    assert notebook.run("await other.workers()").error == closed
    assert notebook.run("other.map(abs, [1])").error == closed


def test_what_a_call_prints_is_below_its_cell(notebook: Notebook) -> None:
    notebook.run("def greet(name):\n    print('hello', name)\n    return name")
    streamed = notebook.run("await node.map(greet, ['ada'], **small)")
    assert streamed.stdout.endswith(" | hello ada\n")
    for name in ("bob", "eve"):
        notebook.run("pool = node.executor(**small)" if name == "bob" else "")
        pooled = notebook.run(f"pool.submit(greet, '{name}').result()")
        assert pooled.stdout.endswith(f" | hello {name}\n")
    quiet = notebook.run("await node.map(greet, ['carol'], show_output=False, **small)")
    assert (quiet.value, quiet.stdout) == ("['carol']", "")
    said = notebook.run("await node.map(greet, ['dan'], progress=True, **small)").stderr
    assert "formation: 1 of 1 done, 0 failed" in said
