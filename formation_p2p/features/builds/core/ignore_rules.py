"""Which files of a folder a .dockerignore or .containerignore leaves out.

>>> rules = parse_ignore_rules("*.o\\n!keep.o\\ndata")
>>> [name for name in ("a.o", "keep.o", "data/x.csv", "a.c") if not rules.leave_out(name)]
['keep.o', 'a.c']

Source: the Dockerfile reference, ".dockerignore file"; moby's patternmatcher.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput

# Each is compared with each file and its folders: a thousand for ten thousand files take seconds.
MAX_RULES: Final = 500
MAX_RULE_CHARS: Final = 1024


@dataclass(frozen=True, slots=True)
class IgnoreRules:
    """Patterns, and whether each of them takes back what an earlier one has left out."""

    rules: tuple[tuple[re.Pattern[str], bool], ...] = ()

    def leave_out(self, name: str) -> bool:
        """Of a file's name from the folder of the rules; the last rule that matches counts. One
        that matches a folder holds for all that is in it."""
        parts = name.split("/")
        paths = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        left_out = False
        for pattern, keeps in self.rules:
            if left_out is keeps and any(map(pattern.fullmatch, paths)):
                left_out = not keeps
        return left_out


def parse_ignore_rules(text: str) -> IgnoreRules:
    """Raises InvalidInput."""
    rules: list[tuple[re.Pattern[str], bool]] = []
    for number, line in enumerate(text.splitlines(), start=1):
        rule = line.strip()
        if not rule or line.startswith("#"):
            continue
        keeps = rule.startswith("!")
        parts = [part for part in rule[keeps:].strip().split("/") if part not in ("", ".")]
        if not parts:
            continue
        field = f".dockerignore: line {number}"
        if len(rule) > MAX_RULE_CHARS or len(rules) == MAX_RULES:
            limits = f"{MAX_RULES} rules of {MAX_RULE_CHARS} characters"
            raise InvalidInput(field, f"there are at most {limits}; write fewer")
        try:
            rules.append((re.compile(_expression("/".join(parts))), keeps))
        except re.error:
            raise InvalidInput(field, f"{rule!r} is not a pattern; close its brackets") from None
    return IgnoreRules(tuple(rules))


_TOKEN: Final = re.compile(r"\*\*/|\*\*|\*|\?|\\.|\[[^\]]*\]|.", re.DOTALL)


def _expression(pattern: str) -> str:
    """`*` and `?` stay within one part of a name, `**` goes over any number of folders."""
    signs = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    words: list[str] = []
    for token in _TOKEN.findall(pattern):
        if token in signs:
            words.append(signs[token])
        elif token.startswith("[") and len(token) > 1:
            words.append(token)
        elif token == "[":
            raise re.error("a bracket is open")
        else:
            words.append(re.escape(token[-1]))
    return "".join(words)
