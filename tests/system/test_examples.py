"""The examples, each run as its first lines say."""

import os
import re
import subprocess
import sys
import tarfile
import threading
import time
import tomllib
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.programs import ROOT, Program, python, running
from tests.support.sandboxes import besides_warning

EXAMPLES = ROOT / "examples"
# What no example takes that does not hang, where many others want the processor.
EXAMPLE_S = 600.0


def example(name: str) -> str:
    return str(EXAMPLES / name)


def scheduler_line(worker: Program) -> str:
    """What worker.py tells one to paste."""
    return worker.line_with("scheduler.py")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples") / "home"


@pytest.fixture(scope="module")
def paste(home: Path) -> Iterator[str]:
    """worker.py runs in a home that was empty; this is the line for the second terminal."""
    with running(sys.executable, example("worker.py"), FORMATION_HOME=str(home)) as worker:
        yield scheduler_line(worker)


def test_the_line_that_the_worker_prints_counts_primes_in_a_second_terminal(paste: str) -> None:
    # Nothing but the line: the home of the first terminal is not in this environment.
    with running("bash", "-c", paste, FORMATION_HOME="/nonexistent") as scheduler:
        assert scheduler.ended() == 0, scheduler.output
    # https://oeis.org/A006880 has 78,498 below 10^6; 148,933 is pi(2 * 10^6).
    assert "20 tasks found 148,933 primes below 2,000,000" in scheduler.output


def test_a_scheduler_without_a_network_says_what_to_do(tmp_path: Path) -> None:
    scheduler = python(example("scheduler.py"), FORMATION_HOME=str(tmp_path / "home"))
    assert scheduler.process.returncode == 1
    assert "formation network create" in scheduler.output


def test_the_embedding_application_answers_others_while_a_slow_answer_is_worked_out(
    paste: str, home: Path
) -> None:
    with running(sys.executable, example("embed.py"), "0", FORMATION_HOME=str(home)) as app:
        [url] = re.findall(r"http://\S+", app.line_with("http://"))
        slow: list[str] = []
        thread = threading.Thread(
            target=lambda: slow.append(fetch(url + "/factors/100000980001501"))
        )
        thread.start()
        answered = 0
        while thread.is_alive():
            with pytest.raises(urllib.error.HTTPError, match="422"):
                fetch(url + "/factors/a-number")
            answered += 1
            time.sleep(0.02)
        thread.join()
    assert slow == ["[10000019,10000079]"]
    # One that waits until the slow answer is worked out ends with that.
    assert answered > 3, "nothing was answered while the slow answer was worked out"


def fetch(url: str) -> str:
    with urllib.request.urlopen(url, timeout=EXAMPLE_S) as response:
        return str(response.read().decode())


def submit(name: str, home: Path, results: Path) -> None:
    """As the first line of a job file says, but for where the results go."""
    command = (EXAMPLES / name).read_text().splitlines()[0]
    arguments = command.removeprefix("# formation ").replace("results", str(results)).split()
    with running(*arguments, forked=True, FORMATION_HOME=str(home)) as submitted:
        assert submitted.ended() == 0, submitted.output


def test_the_job_file_is_submitted_and_its_archive_comes_back(
    paste: str, home: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    submit("job.toml", home, results)
    names = tomllib.loads((EXAMPLES / "job.toml").read_text())["task"][0]["each"]
    for name in names:
        words = len((EXAMPLES / name).read_bytes().split())
        assert (results / f"words-{name}" / "stdout").read_text() == f"{words} {name}\n"
    with tarfile.open(results / "archive" / "examples.tar.gz") as tar:
        assert sorted(tar.getnames()) == sorted(names)


def test_files_go_from_the_first_stage_to_the_second_and_the_total_comes_back(
    paste: str, home: Path, tmp_path: Path
) -> None:
    results = tmp_path / "results"
    submit("stages.toml", home, results)
    names = tomllib.loads((EXAMPLES / "stages.toml").read_text())["task"][0]["each"]
    words = sum(len((EXAMPLES / name).read_bytes().split()) for name in names)
    assert int((results / "total" / "total.txt").read_text()) == words


def test_a_package_of_ones_own_runs_on_a_worker_that_does_not_have_it(
    paste: str, home: Path
) -> None:
    submitted = python(example("own_package/main.py"), FORMATION_HOME=str(home))
    assert submitted.process.returncode == 0, submitted.output
    first, *others = submitted.output.splitlines()
    assert re.fullmatch(r"goes along: thesaurus \(3 files, 706B, baf\w+\)", first)
    assert others == [
        "Ada: {'quick': ['fast', 'brisk'], 'hard': ['difficult', 'solid']}",
        "Bob: {'small': ['little', 'minor'], 'quick': ['fast', 'brisk']}",
        "Cyd: {'hard': ['difficult', 'solid'], 'small': ['little', 'minor']}",
    ]


def test_the_search_of_a_grid_runs_on_three_workers() -> None:
    with running("-m", "examples.grid_search", forked=True) as searched:
        # Each worker imports scikit-learn: on a busy machine for half a minute.
        assert searched.ended(within_s=EXAMPLE_S) == 0, searched.output
    did = [int(line.split()[3]) for line in searched.lines if line.startswith("worker ")]
    # Any of them, as they are leased: each counts the batches that it did.
    assert len(did) == 3
    assert any(did)
    # What scikit-learn finds by itself.
    assert "18 fits: {'C': 10, 'gamma': 0.001} are right in 97" in searched.output


def test_two_of_three_workers_agree_and_what_they_do_not_is_told() -> None:
    with running("-m", "examples.quorum", forked=True) as voted:
        assert voted.ended(within_s=EXAMPLE_S) == 0, voted.output
    assert besides_warning(voted.output).splitlines() == [
        "[97, 997, 9973]",
        "3 answers, 3 different",
        "6 answers were the same as another worker's",
    ]


@pytest.mark.parametrize(
    "name",
    ["worker.py", "scheduler.py", "embed.py", "own_package/main.py", "grid_search.py", "quorum.py"],
)
def test_an_example_is_short(name: str) -> None:
    assert len((EXAMPLES / name).read_text().splitlines()) < 60


def test_who_comes_second_has_its_turn() -> None:
    with running("-m", "examples.fair_share", forked=True) as shared:
        assert shared.ended(within_s=EXAMPLE_S) == 0, shared.output
    why, who = besides_warning(shared.output).splitlines()
    assert why.startswith("dave waits: cpu: taken; after bob")
    assert who == "dave is done while bob has more to do: True"


def test_an_application_of_py_libp2p_shares_the_ports_of_two_nodes() -> None:
    with running("-m", "examples.py_libp2p_host", forked=True) as hosted:
        assert hosted.ended(within_s=EXAMPLE_S) == 0, hosted.output
    assert besides_warning(hosted.output).splitlines() == ["hello bob", "[1, 2, 3]"]


def test_two_of_three_owners_ban_the_third() -> None:
    with running("-m", "examples.charter", forked=True) as banned:
        assert banned.ended(within_s=EXAMPLE_S) == 0, banned.output
    lines = besides_warning(banned.output).splitlines()
    # Cleo's node says so where it hears of the ban before the example ends.
    assert [each for each in lines if "bans this peer" not in each] == [
        "cleo's task ends with exit code 0",
        "it is refused: version 2 of the charter has 1 of 2 signatures under the rules of those "
        "before it",
        "cleo is out: True",
    ]


def test_steps_go_on_where_their_worker_is_killed() -> None:
    with running("-m", "examples.steps", forked=True) as steps:
        assert steps.ended(within_s=EXAMPLE_S) == 0, steps.output
    found = re.search(r"pi is about 3.1416 after 30 steps in (\d+) processes", steps.output)
    assert found is not None, steps.output
    # It begins once, and goes on where it was moved to and where it was not killed.
    assert int(found[1]) >= 3


STARTS = """
import importlib.util, sys
from pathlib import Path
path = sys.path[1:]
for each in sys.argv[3:]:
    sys.path[:] = [sys.argv[1 if each.endswith(".py") else 2], *path]
    for name in [name for name in sys.modules if name.partition(".")[0] == "examples"]:
        del sys.modules[name]
    if each.endswith(".py"):
        spec = importlib.util.spec_from_file_location(f"started_{Path(each).stem}", each)
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(each)
    print(module.__file__)
"""


def test_each_starts_as_a_file_and_as_a_module(tmp_path: Path) -> None:
    """Up to what it does: what it needs is found from any folder."""
    files = sorted(path for path in EXAMPLES.glob("*.py") if path.stem != "__init__")
    modules = [f"examples.{path.stem}" for path in files]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    argv = [sys.executable, "-c", STARTS, *map(str, (EXAMPLES, ROOT, *files, *modules))]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout.decode().splitlines() == list(map(str, [*files, *files]))
