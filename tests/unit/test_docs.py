"""What the reference says of states, options, keys and errors, and other pages of jobs and trust,
is what the code says."""

import configparser
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from formation_p2p import public
from formation_p2p.command import exits
from formation_p2p.command.job_file import TASK_KEYS, parse_job_file
from formation_p2p.command.task_flags import FLAGS
from formation_p2p.core.errors import FormationError
from formation_p2p.core.refusals import Refusal
from formation_p2p.core.units import format_bytes
from formation_p2p.drivers import heartbeat
from formation_p2p.jobs.core import task_run
from formation_p2p.jobs.core.job_events import RetryReason
from formation_p2p.leases.core import back_off, held_lease, lease
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.machine.core import requirements
from formation_p2p.peer.core import reputation_gossip as hearsay
from formation_p2p.placement.core.names import BUILT_IN
from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.placement.core.task_options import TaskOptionKwargs
from formation_p2p.trust.core import attestation, experience
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.workload.core.derive import MAX_EDGES
from formation_p2p.workload.core.hints import MIN_PEER_CHARS, Kind
from formation_p2p.workload.core.memory_estimate import MAX_KINDS, MAX_SAMPLES
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.quorum import Quorum
from formation_p2p.workload.core.scope import Find, Scope
from formation_p2p.workload.core.work import MAX_TASKS, MIN_MEMORY_BYTES
from tests.support.documents import block, first_cells, text_of
from tests.support.programs import ROOT
from tests.support.state_tables import events_table, read_ways, tables_of_the_code

TRUST = TrustParameters()


def flowing(page: str) -> str:
    """A page without its ends of lines."""
    return " ".join(text_of(f"docs/{page}.md").split())


# -- jobs -----------------------------------------------------------------------------------


def test_the_job_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.csv").write_text("1")
    for program in ("prepare.sh", "train.py", "compare.py"):
        (tmp_path / program).touch()
    text = block("docs/how-to/job-files.md", "toml", 'name = "sweep"').text
    job = parse_job_file(text, tmp_path)
    assert [task.label for task in job.tasks] == [
        "prepare-data-a.csv",
        "prepare-data-b.csv",
        "train-0.1-1",
        "train-0.1-2",
        "train-0.01-1",
        "train-0.01-2",
        "train-0.01-3",
        "train-0.5-1",
        "compare",
    ]
    assert job.tasks[2].after == (0, 1)
    assert job.tasks[-1].after == tuple(range(2, 8))
    assert {task.needs and task.needs.gpu_count for task in job.tasks} == {None, 1}


def test_the_program_makes_the_plan() -> None:
    text = block("docs/how-to/plans.md", "python", "plan = derive(").text
    names: dict[str, Any] = {}
    exec(compile(text, "docs/how-to/plans.md", "exec"), names)
    plan = names["plan"]
    assert [len(task.after) for task in plan.tasks] == [0, 1, 1, 1, 1, 1, 5, 5]


def test_the_bounds_are_those_of_the_code() -> None:
    job_files, jobs = flowing("reference/job-files"), flowing("explanation/jobs")
    least = format_bytes(MIN_MEMORY_BYTES).replace("MiB", " MiB")
    assert f"at most {MAX_TASKS:,} tasks and {MAX_EDGES:,} dependencies" in job_files
    for said in (
        f"the last {MAX_SAMPLES} samples of each kind, for at most {MAX_KINDS:,} kinds",
        f"plus 20 %, and at least {least}.",
    ):
        assert said in jobs


# -- leases ------------------------------------------------------------------------------


def waits() -> str:
    rows = []
    for fault, rule in back_off.RULES.items():
        wait = f"{rule.first_s:g} to {rule.last_s:g} s" if rule.last_s else "-"
        rows.append(f"| {fault} | {wait} | {rule.until} |")
    return "\n".join(["| fault | wait | asked again when |", "| --- | --- | --- |", *rows])


def numbers() -> str:
    return "\n".join(
        [
            "| what | how long or how many |",
            "| --- | --- |",
            f"| deliberation, after the first offer | {LEASE_DEFAULTS.deliberation_s:g} s |",
            f"| any answer to a request or a commit | {LEASE_DEFAULTS.answer_s:g} s |",
            f"| a soft hold | {LEASE_DEFAULTS.hold_s:g} s |",
            f"| a lease, from its commit or renewal | {LEASE_DEFAULTS.lease_s:g} s |",
            f"| an unanswered renewal is repeated | every {LEASE_DEFAULTS.renew_again_s:g} s |",
            f"| attempts in flight under one lease | {LEASE_DEFAULTS.window} |",
            f"| a request that preempts is remembered | {LEASE_DEFAULTS.want_s:g} s |",
            f"| a stopped node's tasks live | {heartbeat.SILENCE_S:g} s |",
        ]
    )


@pytest.mark.parametrize(
    "part",
    [events_table(lease.TRANSITIONS), events_table(held_lease.TRANSITIONS), waits(), numbers()],
    ids=["worker", "scheduler", "back-off", "numbers"],
)
def test_the_tables_in_the_document_are_those_of_the_code(part: str) -> None:
    document = "docs/reference/states.md"
    assert part in text_of(document), f"{document} should have:\n\n{part}\n"


# -- states ------------------------------------------------------------------------------


def rows() -> dict[str, list[dict[str, set[str]]]]:
    """Those of docs/reference/states.md, by file."""
    found: dict[str, list[dict[str, set[str]]]] = {}
    table = re.compile(r"^\| [^|]+ \| ([^|]*→[^|]*) \| `([^`]+)` \|$", re.M)
    for cell, file in table.findall(text_of("docs/reference/states.md")):
        found.setdefault(file, []).append(read_ways(cell))
    return found


def test_the_documents_have_every_table_of_states_of_the_code_as_it_is() -> None:
    assert events_table(task_run.TRANSITIONS) in text_of("docs/reference/states.md")
    assert rows() == tables_of_the_code()


# -- keys, options, errors ----------------------------------------------------------------


def test_the_options_of_tasks_are_those_of_the_code() -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (?:`(\w+)`|-) \| (?:`--([\w-]+)`|-) \|",
        text_of("docs/reference/options.md").split("\n## ")[0],
        re.MULTILINE,
    )
    assert {name for name, _, _ in rows} == set(TaskOptionKwargs.__annotations__)
    files = {name: (key, flag.removeprefix("no-")) for name, key, flag in rows if key}
    assert files == {name: (flag.file_key, flag.name) for name, flag in FLAGS.items()}


def test_the_needs_and_the_values_of_options_are_those_of_the_code() -> None:
    assert first_cells("options", "Needs") == {*requirements.NEEDS, "label.KEY"}
    policies = {re.split(r"[(>]", each)[0] for each in first_cells("options", "Policies")}
    assert policies == {*BUILT_IN, "trust"}
    hints = {each.split("=")[0].split(".")[0] for each in first_cells("options", "Hints")}
    assert hints == set(Kind)
    assert first_cells("options", "Scopes") == {scope.name.lower() for scope in Scope}
    assert first_cells("options", "Find") == set(Find)
    assert first_cells("options", "Quorum") == {each.name for each in fields(Quorum)}


def test_the_keys_of_files_are_those_of_the_code() -> None:
    keys = {each.split(".")[0] for each in first_cells("job-files", table="key of `[[task]]`")}
    assert keys == set(TASK_KEYS)


def test_the_errors_and_exit_codes_are_those_of_the_code() -> None:
    public_errors = {
        name
        for name, value in vars(public).items()
        if isinstance(value, type) and issubclass(value, FormationError)
    }
    assert first_cells("errors", "Errors in Python") == public_errors - {"FormationError"}
    assert first_cells("errors", "Failure kinds") == set(FailureKind)
    kinds = flowing("reference/errors").split("## Failure kinds")[1].split("## Refusals")[0]
    assert all(f"`{reason}`" in kinds for reason in RetryReason)
    assert first_cells("errors", "Refusals") == {each.__name__ for each in get_args(Refusal)}
    codes = re.findall(
        r"^\| (\d+) \| ([^|]+) \|", text_of("docs/reference/errors.md"), re.MULTILINE
    )
    told = re.findall(r"^  (\d+) +(.+)$", exits.IN_WORDS, re.MULTILINE)
    assert [code for code, _ in codes] == [code for code, _ in told]
    assert codes[:-1] == told[:-1]


def test_the_tests_that_the_page_of_security_names_are_there() -> None:
    names = set(re.findall(r"`(test_\w+\.py)`", text_of("docs/explanation/security.md")))
    assert names - {path.name for path in (ROOT / "tests").rglob("test_*.py")} == set()


# -- length --------------------------------------------------------------------------------


def test_the_documents_stay_short() -> None:
    """A page of how-to is one task. Decisions are a record, and are not counted."""
    docs = ROOT / "docs"
    for page in (docs / "how-to").glob("*.md"):
        assert len(page.read_text().splitlines()) <= 90, page.name
    pages = [page for page in docs.rglob("*.md") if page.parent.name != "decisions"]
    words = sum(len(re.findall(r"[^\s|-][^\s|]*", page.read_text())) for page in pages)
    assert words <= 35_000


# -- trust -------------------------------------------------------------------------------


def test_the_numbers_of_trust_are_those_of_the_code() -> None:
    each_way = TRUST.prior
    half_life_days = experience.HALF_LIFE_S / 86_400
    days_apart = experience.APART * half_life_days
    text = flowing("explanation/trust")
    for row in (
        f"| a stranger is taken for | {each_way} good and {each_way} bad, so 0.5 |",
        f"all its leases within {experience.LOST_TOGETHER_S} s together |",
        f"as a person or program reports it | {experience.WRONG_WEIGHT} bad |",
        f"| remembered of one peer at most | {experience.MEMORY};",
        f"| experience counts half after | {half_life_days:g} days |",
        f"half-lives ({days_apart:g} to {days_apart + half_life_days:g} days) before or after",
        f"the last {MIN_PEER_CHARS} characters of its id",
        f"| all that others tell counts at most | {TRUST.gossip_weight} |",
        f"| peers remembered | {TRUST.max_peers};",
        f"| voices listened to | {TRUST.max_voices},",
        f"| a word holds for | {attestation.LIFE_S / 3600:g} h |",
        f"| a peer is asked for its opinions at most every | {hearsay.EVERY_S:g} s |",
        f"{hearsay.MAX_PEERS:,} peers in ten minutes",
        f"| peers that one word is about at most | {attestation.MAX_SUBJECTS} |",
        f"score = ({each_way} + good + told good) / ({2 * each_way} + good + bad",
        f"The gate `trust>={EXECUTE_MILLI / 1000:g}`",
        f"refuses requests of peers below {TRUST.submit_milli / 1000:g}.",
    ):
        assert row in text


# -- dependencies ------------------------------------------------------------------------


def test_each_package_that_users_install_has_its_reason() -> None:
    metadata = configparser.ConfigParser()
    metadata.read(ROOT / "setup.cfg")
    extras = {**metadata["options.extras_require"]}
    for name in ("all", "bench", "dev", "release", "sim"):
        del extras[name]
    for text in (metadata["options"]["install_requires"], *extras.values()):
        for line in filter(None, (each.partition("#")[0].strip() for each in text.splitlines())):
            package = re.split(r"[\[<>=]", line)[0]
            assert f"`{package}`" in text_of("docs/explanation/dependencies.md"), package
    for extra in extras:
        assert f"| `{extra}` |" in text_of("docs/explanation/dependencies.md"), extra
