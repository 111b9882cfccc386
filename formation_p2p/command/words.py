"""How small things are written for people, where what comes from others is made safe, and for
programs."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.core.units import format_span

if TYPE_CHECKING:
    from formation_p2p.core.refusals import Refusal

Json = dict[str, Any]

# A message is one line of a terminal or a few; what is longer is cut.
MAX_LINE_CHARS: Final = 500


def say(text: str) -> None:
    """One line to the person, beside whatever the command puts out."""
    print(one_line(text), file=sys.stderr, flush=True)


def put(document: Json) -> None:
    """One JSON document, on a line of its own."""
    import json

    print(json.dumps(document), flush=True)


def printable(text: str) -> str:
    """Without what a terminal would act on: control characters, escapes, direction marks."""
    return "".join(c if c.isprintable() else "\ufffd" for c in text)


def one_line(text: str) -> str:
    line = printable(" ".join(text.split()))
    return line if len(line) <= MAX_LINE_CHARS else f"{line[:MAX_LINE_CHARS]}…"


def refusal_in_words(refusal: Refusal) -> str:
    """With compute capabilities as people write them, and peers by their names."""
    from formation_p2p.core.refusals import Infeasible
    from formation_p2p.machine.core.gpu import format_compute_capability
    from formation_p2p.machine.names import with_names

    match refusal:
        case Infeasible("gpu.cc", int() as needed, int() as free):
            wanted, has = map(format_compute_capability, (needed, free))
            return f"gpu.cc: needs {wanted}, has {has}"
        case _:
            return printable(with_names(refusal))


def tally(reasons: Iterable[str]) -> str:
    """`memory: needs 8GiB, has 4GiB (3 workers); …`, the most frequent first."""
    ordered = Counter(reasons).most_common()
    return "; ".join(why if n == 1 else f"{why} ({n} workers)" for why, n in ordered)


def counted(number: int, what: str) -> str:
    """As for a person.

    >>> counted(1, "peer"), counted(2, "peer")
    ('1 peer', '2 peers')
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def date(unix_s: float) -> str:
    """Local time, to the minute; `never` for what no calendar holds."""
    try:
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(unix_s))
    except (OverflowError, OSError, ValueError):
        return "never"


def ago(unix_s: int | None) -> str:
    """`5 min ago`; `-` for never."""
    if unix_s is None:
        return "-"
    past_s = int(time.time()) - unix_s
    for unit, length_s in (("d", 86_400), ("h", 3600), ("min", 60)):
        if past_s >= 100 * 86_400:
            return date(unix_s)
        if past_s >= 2 * length_s:
            return f"{past_s // length_s} {unit} ago"
    return "just now"


def for_long(since_unix_s: int) -> str:
    """`for 3 h`."""
    return f"for {format_span(max(time.time() - since_unix_s, 0))}"
