"""Tasks that failed alike are told once, with what to do about it."""

from dataclasses import replace

import pytest
from rich.console import Console

from formation_p2p.api.task_result import TaskResult
from formation_p2p.code.packages import naming_package
from formation_p2p.command.outcomes import cause_of, why_failed
from formation_p2p.command.tables import results as table
from formation_p2p.core.identity import Identity
from formation_p2p.jobs.core.job_events import NOT_TRIED, Attempt
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.process import ProcessResult

WORKER = Identity.from_seed(bytes(32)).peer_id
TRACE = "exit: ended with exit code 1: Traceback (most recent call last):\n  File x, line {}\n"
MISSING = f"{TRACE}ModuleNotFoundError: No module named 'sklearn'"


def failed(number: int, why: str, kind: FailureKind = FailureKind.EXIT) -> TaskResult:
    reasons = (Attempt("a", WORKER, why, lost=False),)
    label = f"part-{number}"
    return TaskResult(
        f"job/{number}", label, "failed", WORKER, attempts=1, reasons=reasons, kind=kind
    )


def shown(ended: list[TaskResult]) -> str:
    notes = {
        each.task_id: why_failed(each, printed=False) if each.status == "failed" else ""
        for each in ended
    }
    causes = {each.task_id: cause_of(each, notes[each.task_id]) for each in ended}
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table(ended, notes, causes))
    return captured.get()


def test_two_hundred_tasks_with_one_cause_are_one_row() -> None:
    ended = [failed(number, MISSING.format(number)) for number in range(3)]
    ended += [failed(number, NOT_TRIED + MISSING.format(0)) for number in range(3, 200)]
    ended.append(TaskResult("job/200", "part-200", "succeeded", WORKER, ran_ms=1200))
    ended.append(failed(201, "exit: ended with exit code 3"))
    text = shown(ended)
    assert text.count("part-") == 4
    assert "part-0 … part-199" in text
    assert "200 x ModuleNotFoundError: No module named 'sklearn'; env=[\"scikit-learn\"]" in text
    assert text.count("ended with exit code 3") == 1


def test_what_was_printed_is_not_said_again_but_for_the_cure() -> None:
    raw = ProcessResult(1).encode()
    told = replace(failed(0, MISSING.format(3)), result=raw)
    cure = 'env=["scikit-learn"], or --env of a command, installs it'
    assert why_failed(told, printed=True) == f"ended with exit code 1; {cure}"
    cure = "the task had no network; ask for one by --needs network=1"
    offline = f"exit: ended with exit code 6; {cure}: curl: (6)"
    told = replace(failed(0, offline), result=raw)
    assert why_failed(told, printed=True).endswith(cure)
    traced = (
        f"exit: ended with exit code 1; {cure}: Traceback:\n  here\ngaierror: no name resolution"
    )
    assert f"3 x gaierror: no name resolution; {cure}" in shown(
        [failed(n, traced) for n in range(3)]
    )


def test_what_is_not_said_of_many_has_its_own_row() -> None:
    ended = [failed(number, f"exit: ended with exit code {number}") for number in range(60)]
    assert shown(ended).count("ended with exit code") == 50
    waits = [TaskResult(str(n), f"after-{n}", "failed", waited_for="first") for n in range(5)]
    assert "5 x did not run: it waited for first, which brought no result" in shown(waits)


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("sklearn", "scikit-learn"),
        ("cv2.x", "opencv-python-headless"),
        ("nobody_has", "nobody_has"),
        ("xdist", "pytest-xdist"),  # which is installed here
    ],
)
def test_the_package_of_a_missing_module_is_named(module: str, package: str) -> None:
    cure = f'env=["{package}"], or --env of a command, installs it'
    for error in (f"ModuleNotFoundError: No module named '{module}'", f"No module named {module}"):
        assert naming_package(f"first\n{error}\n") == f"first\n{error}; {cure}"
    of_call = f"No module named '{module}' on this worker; a package is installed with env=; or"
    assert naming_package(of_call).endswith(f'installed with env=["{package}"]; or')


def test_other_errors_stay_as_they_are() -> None:
    for error in ("KeyError: 'x'", "No module named 'x'\nthen more", "No module named 'x' here"):
        assert naming_package(error) == error
