"""What the command line reads from people, and writes for them."""

import asyncio
import hashlib
import io
import json
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click
import pytest
from rich.console import Console

from formation_p2p.api.calls import value_of
from formation_p2p.api.task_result import TaskResult
from formation_p2p.command import exits, status, words
from formation_p2p.command.as_json import EventLines
from formation_p2p.command.files import check_outputs, named, read_input, write_outputs, write_tail
from formation_p2p.command.flags import LimitOptions, pairs_of, parse_duration_s, read_invite
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.logs import log_from
from formation_p2p.command.outcomes import (
    error_of,
    exit_code_of,
    process_result,
    why_disagreed,
    why_failed,
)
from formation_p2p.command.rights import in_json, in_words
from formation_p2p.command.tables import offer_in_words, ranked, table_of, workers
from formation_p2p.command.task_flags import Kind
from formation_p2p.command.top import _as_of_now
from formation_p2p.command.words import one_line, printable, refusal_in_words, tally
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import (
    FormationError,
    InvalidInput,
    LocalError,
    NodeClosed,
    TaskFailed,
    Unauthorized,
    Unplaceable,
    Unreachable,
)
from formation_p2p.core.identity import Identity
from formation_p2p.core.refusals import Denied, Infeasible, Leaving, TooClose
from formation_p2p.core.units import GIB
from formation_p2p.drivers import python_error, result_pickler
from formation_p2p.jobs.core.job_events import (
    Answer,
    Attempt,
    Awaited,
    CodeSent,
    JobEnded,
    JobWaits,
    RetryReason,
    TaskBegan,
    TaskCancelled,
    TaskDisagreed,
    TaskGaveUp,
    TaskPlaced,
    TaskPrinted,
    TaskRecalled,
    TaskRetried,
    TaskSaved,
    TaskSucceeded,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.machine.core.capability import Limits
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.machine.names import learn_name
from formation_p2p.placement.core.decision import Ranked, terms_of
from formation_p2p.records.core.pasted_text import cleaned
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import Right, Rights
from formation_p2p.trust.core.hours import parse_hours
from formation_p2p.trust.core.quota import Quota
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.inputs_from import process_in, work_of
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.process import (
    MAX_TAIL_BYTES,
    ContainerSpec,
    ProcessResult,
    ProcessSpec,
    WasmSpec,
)
from formation_p2p.workload.core.scope import Place
from formation_p2p.workload.core.work import MAX_PAYLOAD_BYTES, Task
from tests.support.dht_world import profile

BOB = Identity.from_seed(bytes(32)).peer_id
CODE = Code(Blob(Cid(RAW, digest_of(b"")), 0), ("shop",), 2, 100, ("shop/.env",))


# -- what people write ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 30), ("1.5", 1.5), ("90s", 90), ("5m", 300), ("2h", 7200), ("30d", 2_592_000)],
)
def test_spans_of_time_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "-1", "1e9", "inf", "nan", "5 minutes", "h", "9" * 30])
def test_what_is_no_span_of_time_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"expires: .* is not a duration"):
        parse_duration_s(text, "expires")


def test_pairs_are_read_and_anything_else_is_refused() -> None:
    assert pairs_of("env", ["A=1", "B=", "C=x=y"]) == {"A": "1", "B": "", "C": "x=y"}
    for wrong in (["A"], ["=1"], ["A=1", "A=2"]):
        with pytest.raises(InvalidInput, match="env"):
            pairs_of("env", wrong)


def test_limits_are_read_and_name_what_is_wrong() -> None:
    assert LimitOptions(
        cpu="1.5", memory="8GiB", storage=None, network=100, gpus=0
    ).limits() == Limits(cpu_milli=1500, memory_bytes=8 * GIB, network_mbps=100, gpu_count=0)
    for field, (cpu, memory, storage) in {
        "cpu": ("many", None, None),
        "memory": (None, "8 apples", None),
        "storage": (None, None, "-1"),
    }.items():
        with pytest.raises(InvalidInput) as error:
            LimitOptions(cpu=cpu, memory=memory, storage=storage, network=None, gpus=None).limits()
        assert error.value.field == field


def test_an_invite_comes_as_it_is_from_a_file_or_from_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert read_invite("formation1:abc") == "formation1:abc"
    (tmp_path / "join").write_text("formation1:def\n")
    assert read_invite(str(tmp_path / "join")) == "formation1:def\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"formation1:\n  ghi\n")))
    assert read_invite("-") == "formation1:\n  ghi\n"


@pytest.mark.parametrize("wrong", ["ormation1:c2VjcmV0", "x" * 5000, "\0", "/"])
def test_half_an_invite_is_not_repeated_in_the_error(wrong: str) -> None:
    with pytest.raises(InvalidInput) as error:
        read_invite(wrong)
    assert wrong not in str(error.value).removesuffix("all of it")


# -- what they read ------------------------------------------------------------------------------


def test_nothing_that_a_terminal_acts_on_gets_through() -> None:
    assert printable("a\x1b[2Jb\u202ec\x07") == "a\ufffd[2Jb\ufffdc\ufffd"
    assert one_line("two\nlines\tand \x1b") == "two lines and \ufffd"
    assert len(one_line("x" * 10_000)) < 1000
    assert tally(["a", "b", "b"]) == "b (2 workers); a"


def test_refusals_have_amounts_as_people_write_them() -> None:
    assert refusal_in_words(Infeasible("memory", 8 * GIB, 4 * GIB)) == (
        "memory: needs 8GiB, has 4GiB"
    )
    assert refusal_in_words(Infeasible("cpu", 1500, 250)) == "cpu: needs 1.5, has 0.25"
    assert refusal_in_words(Infeasible("gpu.cc", 86, 80)) == "gpu.cc: needs 8.6, has 8.0"
    assert refusal_in_words(Infeasible("label.zone", "a", "none")) == (
        "label.zone: needs the label zone=a, has no such label"
    )
    assert refusal_in_words(Denied("submit", "no\x1b grant")) == (
        "not allowed to submit: no\ufffd grant"
    )


def test_of_two_workers_of_one_owner_the_other_is_named() -> None:
    dave = Identity.from_seed(bytes([4]) * 32).peer_id
    learn_name(dave, "dave")
    close = TooClose("grant:7", dave)
    assert refusal_in_words(close).startswith("shares the invitation with dave …")
    for mark, cure in (("grant:7", True), ("", False)):
        refusals = ((dave, TooClose(mark, dave)),)
        result = TaskResult("job/0", "", "disagreed", refusals=refusals)
        assert ("apart=none" in why_disagreed(result)) is cure
        assert ("apart=()" in str(result.error())) is cure


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (TaskFailed(""), 1),
        (InvalidInput("cpu", "none"), 2),
        (LocalError(""), 2),
        (NodeClosed(""), 2),
        (Unplaceable(""), 3),
        (Unreachable(""), 3),
        (Unauthorized(""), 4),
        (FormationError(""), 2),
    ],
)
def test_every_error_has_its_exit_code(error: FormationError, code: int) -> None:
    assert exits.code_of(error) == code


def failed(
    why: str, kind: FailureKind | None, result: bytes = b"", lost: bool = False
) -> TaskResult:
    attempt = Attempt("j/0#1", BOB, why, lost)
    return TaskResult("j/0", "x", "failed", BOB, result, reasons=(attempt,), kind=kind)


def test_what_the_person_has_seen_already_is_not_said_again() -> None:
    ended = ProcessResult(3, stderr_tail=b"no such key").encode()
    task = failed("exit: ended with exit code 3: no such key", FailureKind.EXIT, ended)
    assert why_failed(task, printed=True) == "ended with exit code 3"
    assert why_failed(task, printed=False) == "ended with exit code 3: no such key"
    well = ProcessResult(0).encode()
    missing = failed("exit: ended well, but: a: b", FailureKind.EXIT, well)
    assert why_failed(missing, printed=True) == "ended well, but: a: b"
    liar = failed("exit: ended: oddly", FailureKind.EXIT, b"nonsense")
    assert why_failed(liar, printed=True) == "ended: oddly"
    gone = failed("exit: code", FailureKind.EXIT, lost=True)
    assert why_failed(gone, printed=True) == "exit: code"


def test_errors_of_tasks_say_who_and_why() -> None:
    error = error_of(failed("timeout: ran past its 3 s", FailureKind.TIMEOUT), "sleep")
    assert isinstance(error, TaskFailed)
    assert str(error) == f"sleep failed on …{BOB[-8:]}: ran past its 3 s"
    for attempts in ((), failed("exit: killed", FailureKind.EXIT).reasons):
        late = TaskResult("j/0", "x", "failed", reasons=attempts, kind=FailureKind.DEADLINE)
        assert str(error_of(late, "sleep")).endswith(
            "did not end before the deadline; allow it longer"
        )
        assert "did not end before its job's deadline" in str(late.error())
    small = Infeasible("memory", 8 * GIB, GIB)
    nobody = error_of(TaskResult("j/0", "x", "unplaceable", refusals=((BOB, small),)), "sleep")
    assert type(nobody) is Unplaceable
    assert "no worker runs sleep: memory: needs 8GiB, has 1GiB" in str(nobody)
    denied = ((BOB, Denied("submit", "the grant expired")),)
    refused = error_of(TaskResult("j/0", "x", "unplaceable", refusals=denied), "sleep")
    assert isinstance(refused, Unauthorized)
    assert error_of(TaskResult("j/0", "x", "succeeded"), "sleep") is None
    assert isinstance(error_of(TaskResult("j/0", "x", "cancelled"), "sleep"), TaskFailed)


def test_a_version_that_workers_lack_is_for_the_worker_and_any_for_calls_alone() -> None:
    lacks = ((BOB, Infeasible("python", "cpython-3.14", "cpython-3.11")),)
    result = TaskResult("j/0", "x", "unplaceable", refusals=lacks)
    of_a_script = str(error_of(result, "python train.py"))
    assert "has cpython-3.11; start a worker there with --python;" in of_a_script
    with pytest.raises(Unplaceable, match=r'start a worker.*--python; or write python="any" for'):
        value_of(result)


def test_a_file_that_a_call_does_not_find_is_said_to_be_missing_on_its_worker() -> None:
    told = failed("exception: it is not there", FailureKind.EXCEPTION)
    with pytest.raises(FileNotFoundError) as raised:
        value_of(
            replace(told, result=python_error.dumps(FileNotFoundError(2, "No"), result_pickler))
        )
    assert "has no files of this machine" in raised.value.__notes__[0]


def test_the_worst_that_a_job_holds_decides_its_exit_code() -> None:
    done = TaskResult("j/0", "x", "succeeded")
    bad = failed("exit: code 1", FailureKind.EXIT)
    nowhere = TaskResult("j/0", "x", "unplaceable", refusals=((BOB, Leaving()),))
    denied = TaskResult("j/0", "x", "unplaceable", refusals=((BOB, Denied("submit", "no")),))
    assert exit_code_of([done]) == 0
    assert exit_code_of([done, bad, nowhere, denied]) == 1
    assert exit_code_of([done, nowhere]) == 3
    assert exit_code_of([denied]) == 4


# -- files ---------------------------------------------------------------------------------------


def test_only_what_was_asked_for_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("old")
    files = {"a": b"new", "data/b": b"b", ".bashrc": b"evil"}
    write_outputs(tmp_path, ["a", "data/b"], files)
    assert sorted(p.name for p in tmp_path.rglob("*") if p.is_file()) == ["a", "b"]
    assert (tmp_path / "a").read_bytes() == b"new"


def test_the_end_of_what_was_printed_does_not_replace_more_of_the_same(tmp_path: Path) -> None:
    path, end = tmp_path / "stdout", b"x" * MAX_TAIL_BYTES
    for there, tail, left in (
        (None, b"all of it", b"all of it"),
        (b"all", b"all of it", b"all of it"),
        (b"more than" + end, end, b"more than" + end),
        (b"only the beginning", end, end),
        (b"of an attempt that was lost", b"", None),
        (None, b"", None),
    ):
        path.unlink(missing_ok=True)
        if there is not None:
            path.write_bytes(there)
        write_tail(path, tail)
        assert (path.read_bytes() if path.exists() else None) == left
    for there, is_cut in ((b"more than" + end, False), (b"gap" + end, True), (b"gap", True)):
        path.write_bytes(there)
        assert write_tail(path, end, hashlib.sha256(b"more than" + end).digest()) is is_cut
    assert path.read_bytes() == end
    with pytest.raises(LocalError, match="Is a directory"):
        write_tail(tmp_path, b"tail")


def test_what_ran_is_known_whichever_driver_ran_it() -> None:
    process = ProcessSpec(("count",), files_out=("a.txt",))
    for spec in (process, WasmSpec(b"\0asm\1\0\0\0", process), ContainerSpec("a", process)):
        needs = Requirements(driver=spec.driver)
        assert process_in(work_of(Task("a/0", needs, spec.encode(), shared=spec.shared))) == process
    assert work_of(Task("a/0", Requirements(driver="python"), b"")) is None
    assert process_in(None) is None


def test_of_workers_that_run_here_top_shows_what_is_free_now() -> None:
    nodes = [{"peer_id": "a", "free": "now"}, {"peer_id": "c", "free": None}]
    found = [{"peer_id": "a", "capacity": "before"}, {"peer_id": "b", "capacity": "before"}]
    shown = _as_of_now({"nodes": nodes, "workers": found})
    assert [each["capacity"] for each in shown] == ["now", "before"]


def test_prices_are_shown_where_somebody_asks_one() -> None:
    free = profile("alice", Moment(0.0, 1_700_000_000.0))
    dear = replace(free, price_micro=50_000)
    for found, is_shown in (([free], False), ([free, dear], True)):
        could = [Ranked(each, 0) for each in found]
        assert ("PRICE" in {each.header for each in workers(found).columns}) == is_shown
        shown = ranked(could, terms_of(could)).columns
        assert ("ASKS" in {each.header for each in shown}) == is_shown
    assert list(workers([free, dear]).columns[4].cells) == ["0", "0.05"]
    said = offer_in_words(dear.capability, ["a", "b", "c"], {"eu": "yes"}, 50_000)
    assert said.endswith("for a, b and c, eu=yes, at 0.05 for a core-hour")
    assert offer_in_words(dear.capability, ["a"], {}, 0).endswith("for a")


def test_a_result_or_a_file_that_is_none_is_a_failure_and_a_module_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskFailed, match="no result of a process"):
        process_result(b"nonsense")
    with pytest.raises(TaskFailed, match="did not send a back"):
        write_outputs(tmp_path, ["a"], {})
    (tmp_path / "a.wasm").write_text("text")
    with pytest.raises(InvalidInput, match=r"a\.wasm: is not WebAssembly"):
        Kind(wasm=tmp_path / "a.wasm").of(ProcessSpec(("a",)))


def test_a_folder_in_the_way_is_found_before_the_work_is_done(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with pytest.raises(LocalError, match="is a folder"):
        check_outputs(tmp_path, ["a"])
    check_outputs(tmp_path, ["b"])
    with pytest.raises(LocalError, match="Is a directory"):
        write_outputs(tmp_path, ["a"], {"a": b""})
    (tmp_path / "b").write_text("")
    with pytest.raises(LocalError, match="b: "):
        write_outputs(tmp_path, ["b/c"], {"b/c": b""})


def test_inputs_are_plain_files_that_fit(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"a")
    assert read_input(tmp_path / "a") == b"a"
    assert named("in", [tmp_path / "a"]) == {"a": tmp_path / "a"}
    for wrong in (Path("/dev/zero"), tmp_path):
        with pytest.raises(LocalError, match="not a plain file"):
            read_input(wrong)
    with (tmp_path / "big").open("wb") as big:
        big.truncate(MAX_PAYLOAD_BYTES + 1)
    with pytest.raises(LocalError, match="travel with a task"):
        read_input(tmp_path / "big")
    with pytest.raises(InvalidInput, match="would both be a"):
        named("in", [tmp_path / "a", tmp_path / "b/a"])


# -- events for programs ---------------------------------------------------------------------------


def test_a_character_cut_in_two_is_put_together() -> None:
    lines = EventLines({"j/0": "x"})
    first = lines.line(TaskPrinted("j/0", False, "ä".encode()[:1], BOB))
    second = lines.line(TaskPrinted("j/0", False, "ä".encode()[1:], BOB))
    assert first["text"] + second["text"] == "ä"
    lines.line(TaskPrinted("j/0", True, b"\xc3", BOB))
    lines.line(TaskPlaced("j/0", "j/0#2", BOB, "lease", True))
    assert lines.line(TaskPrinted("j/0", True, b"a", BOB))["text"] == "a"


def test_each_event_is_a_line_with_the_label_of_its_task() -> None:
    lines = EventLines({"j/0": "x"})
    attempt = Attempt("j/0#1", BOB, "gone", True)
    x = {"task": "x"}
    assert [
        lines.line(TaskPlaced("j/0", "j/0#1", BOB, "lease", True)),
        lines.line(TaskBegan("j/0", BOB)),
        lines.line(TaskPrinted("j/0", True, b"a", BOB)),
        lines.line(TaskSaved("j/0", Checkpoint(2, CODE.blob), (BOB,))),
        lines.line(TaskRetried("j/0", attempt, reason=RetryReason.MAY_HAVE_RUN)),
        lines.line(TaskRecalled("j/0", "j/0#2")),
        lines.line(TaskGaveUp("j/0", (attempt,), None, b"", "j/0")),
        lines.line(TaskCancelled("j/0")),
        lines.line(CodeSent(CODE)),
        lines.line(WorkerLost(BOB, "gone")),
        lines.line(JobWaits(Awaited.WORKERS)),
    ] == [
        {"event": "placed", **x, "attempt": "j/0#1", "worker": BOB, "nearest": True},
        {"event": "began", **x, "worker": BOB},
        {"event": "printed", **x, "stream": "stderr", "text": "a"},
        {
            "event": "saved",
            **x,
            "number": 2,
            "size_bytes": CODE.blob.size_bytes,
            "cid": str(CODE.blob.cid),
            "holders": [BOB],
        },
        {"event": "retried", **x, **asdict(attempt), "reason": "may have run"},
        {"event": "recalled", **x, "attempt": "j/0#2"},
        {
            "event": "failed",
            **x,
            "kind": None,
            "attempts": [asdict(attempt)],
            "waited_for": "x",
            "exit_code": None,
            "files": {},
        },
        {"event": "cancelled", **x},
        {
            "event": "code_sent",
            "files": 2,
            "size_bytes": 100,
            "cid": str(CODE.blob.cid),
            "names": ["shop"],
            "left_out": ["shop/.env"],
        },
        {"event": "worker_lost", "worker": BOB, "why": "gone"},
        {"event": "waits", "awaited": "workers"},
    ]


def test_events_are_json_even_where_a_result_is_nonsense() -> None:
    lines = EventLines({"j/0": "x"})
    good = ProcessResult(0, {"a": b"123"}).encode()
    attempts = (Attempt("j/0#1", BOB, "exit: 1", False),)
    reported = [
        lines.line(TaskSucceeded("j/0", BOB, good, 12)),
        lines.line(TaskSucceeded("j/0", BOB, b"nonsense", 12)),
        lines.line(TaskGaveUp("j/0", attempts, FailureKind.EXIT, b"")),
        lines.line(TaskUnplaceable("j/0", ((BOB, Infeasible("cpu", 2, 1)), (BOB, Leaving())))),
        lines.line(JobEnded(1, 0, 0, 0)),
    ]
    succeeded, nonsense, gave_up, unplaceable, ended = [json.loads(json.dumps(t)) for t in reported]
    assert (succeeded["exit_code"], succeeded["files"]) == (0, {"a": 3})
    assert nonsense["exit_code"] is None
    assert (gave_up["event"], gave_up["kind"]) == ("failed", "exit")
    assert [each["kind"] for each in unplaceable["refusals"]] == ["infeasible", "leaving"]
    assert ended == {
        "event": "ended",
        "succeeded": 1,
        "failed": 0,
        "unplaceable": 0,
        "cancelled": 0,
    }


# -- logs and signals ------------------------------------------------------------------------------


def test_logs_are_a_line_each_and_show_tracebacks_only_to_who_asks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, package = logging.getLogger(), logging.getLogger("formation_p2p")
    before = (root.handlers[:], root.level, package.level)
    log = logging.getLogger("formation_p2p.test")
    try:
        for verbosity in (0, 2):
            log_from(verbosity)
            log.debug("quiet")
            try:
                raise ValueError("bad\x1b")
            except ValueError:
                log.exception("it\nfailed")
    finally:
        root.handlers[:] = before[0]
        root.setLevel(before[1])
        package.setLevel(before[2])
    plain, *rest = capsys.readouterr().err.splitlines()
    assert plain == (
        "error: formation_p2p.test: it failed: ValueError('bad\\x1b') (-vv shows where)"
    )
    assert rest[0] == "debug: formation_p2p.test: quiet"
    assert any("Traceback" in line for line in rest)
    assert "\x1b" not in "".join(rest)


def code_of_work(work: Callable[[Interrupt], Coroutine[Any, Any, int]]) -> int:
    with pytest.raises(click.exceptions.Exit) as ended:
        end_with(work)
    return int(ended.value.exit_code)


def test_the_first_signal_does_what_the_work_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    async def work(interrupt: Interrupt) -> int:
        asked = asyncio.Event()
        interrupt.first(asked.set, "stopping")
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(asked.wait(), 5)
        return interrupt.exit_code

    assert code_of_work(work) == 128 + signal.SIGTERM
    assert "stopping; press Ctrl-C again to end at once" in capsys.readouterr().err


def test_work_that_asked_for_nothing_is_cancelled() -> None:
    async def work(interrupt: Interrupt) -> int:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(600)
        return 0

    # A shell's & has it ignored, which the tests inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert code_of_work(work) == 130
    finally:
        signal.signal(signal.SIGINT, before)


def test_what_is_ignored_stays_ignored() -> None:
    async def work(interrupt: Interrupt) -> int:
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.05)
        return 7

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert code_of_work(work) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


def test_status_says_what_a_node_is_for_and_each_way_to_a_peer_once() -> None:
    peer = "12D3KooWJTk7ReiAQJszgpvFDMeNpVo23VYX8wb8N9qbBpagdxgx"
    met = {"peer_id": peer, "name": "kitchen", "path": "direct", "via": None}
    agent = {
        "peer_id": peer,
        "pid": 7,
        "free": None,
        "since_unix_s": 0,
        "grant_expires_unix_s": MAX_EXPIRY_UNIX_S,
        "listens": [],
        "peers": 1,
        "version": "1",
        "connections": [met, met],
    }
    lines = status.node_in_words(agent)
    assert lines[0].endswith("submits work, takes none")
    assert "  knows    1 peer" in lines
    assert [each for each in lines if "meets" in each] == ["  meets    kitchen …Bpagdxgx, direct"]
    relays = {"relayed_bytes": 0, "serves": "members", "reservations": 0, "circuits": 0}
    assert status.node_in_words({**agent, "relays": relays})[0].endswith(": gate")
    assert status.node_in_words({**agent, "free": {}})[0].endswith(": worker")
    plain = {**agent, "listens": ["/ip4/192.0.2.1/tcp/1"], "peers": 2}
    assert status.node_in_words(plain)[0].endswith(": takes no work")
    assert "  knows    2 peers" in status.node_in_words(plain)


@pytest.mark.parametrize(
    "other",
    [
        Rights(1_900_000_000),
        Rights(2_000_000_000, frozenset({Right.WORK})),
        Rights(2_000_000_000, drivers=frozenset({"wasm"})),
        Rights(2_000_000_000, max_priority=3),
        Rights(2_000_000_000, quota=Quota(cpu_milli_hours=1)),
        Rights(2_000_000_000, quota=Quota(gpu_milli_hours=1)),
        Rights(2_000_000_000, quota=Quota(leases=1)),
        Rights(2_000_000_000, hours=parse_hours("mon 18:00-20:00")),
        Rights(2_000_000_000, labels=frozenset({("site", "lab")})),
        Rights(2_000_000_000, place=Place(org="acme")),
        Rights(2_000_000_000, weight_milli=500),
        Rights(2_000_000_000, life=Life(3600, 2_100_000_000)),
        Rights(2_000_000_000, identities=1),
    ],
)
def test_whatever_a_grant_allows_is_said_to_people_and_to_programs(other: Rights) -> None:
    plain = Rights(2_000_000_000)
    assert in_words(other) != in_words(plain)
    assert in_json(other) != in_json(plain)
    assert in_words(plain, " (in 2 d)").endswith(f"until {words.date(2_000_000_000)} (in 2 d)")
    if other.identities:
        assert in_words(other).endswith("; its invite is for at most 1 node")


def test_programs_read_what_each_answer_of_a_quorum_says() -> None:
    given = (ProcessResult(0, stdout_tail=b"4\n").encode(), b"no result of a process")
    answers = tuple(Answer(f"a{n}", BOB, raw, 5) for n, raw in enumerate(given))
    line = EventLines({"job/0": "sum"}).line(TaskDisagreed("job/0", answers))
    assert [(each["exit_code"], each["stdout"]) for each in line["answers"]] == [
        (0, "4\n"),
        (None, None),
    ]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("text", ["formation1:ghi", "“formation1:ghi”", "> formation1:\n> ghi\n"])
def test_an_invite_is_read_however_it_was_saved(tmp_path: Path, encoding: str, text: str) -> None:
    (tmp_path / "invite").write_text(text, encoding=encoding)
    assert cleaned(read_invite(str(tmp_path / "invite"))) == "formation1:ghi"
    assert read_invite(text) == text


def test_a_table_without_rows_is_nothing() -> None:
    for rows, lines in (((), 0), (("a",), 2)):
        out = io.StringIO()
        Console(file=out).print(table_of({"name": str}, rows))
        assert len(out.getvalue().splitlines()) == lines
