"""What one check of `formation doctor` found."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARNING = "warning"  # a node runs here, and lacks something
    FAILURE = "failure"  # a node cannot run here, or does no good


@dataclass(frozen=True, slots=True)
class Finding:
    """`found` is what is the case, `advice` what to do about it, in one sentence; empty where all
    is well."""

    check: str
    verdict: Verdict
    found: str
    advice: str = ""


def ok(check: str, found: str) -> Finding:
    return Finding(check, Verdict.OK, found)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.WARNING, found, advice)


def failure(check: str, found: str, advice: str) -> Finding:
    return Finding(check, Verdict.FAILURE, found, advice)
