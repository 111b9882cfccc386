"""The code blocks of the documents, as their readers see them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from tests.support.programs import ROOT

DOCUMENTS: Final = (
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
    *sorted(
        str(path.relative_to(ROOT)) for path in ROOT.glob("formation_p2p/features/*/README.md")
    ),
)
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_INLINE: Final = re.compile(r"`((?:formation|python -m) [a-z][^`]*)`")


@dataclass(frozen=True, slots=True)
class Block:
    document: str
    line: int
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """What a person types: without the prompt, comments and what the command prints."""
        joined = self.text.replace("\\\n", " ")
        typed = [line[2:] for line in joined.splitlines() if line.startswith("$ ")]
        return [shlex.join(_words(line)) for line in typed]


def _words(line: str) -> list[str]:
    return shlex.split(line, comments=True)


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def blocks(*languages: str) -> Iterator[Block]:
    for document in DOCUMENTS:
        text = text_of(document)
        for match in _FENCE.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            if not languages or match[1] in languages:
                yield Block(document, line, match[1], match[2])


def block(document: str, language: str, containing: str = "") -> Block:
    """The only one."""
    found = [
        each for each in blocks(language) if each.document == document and containing in each.text
    ]
    assert len(found) == 1, f"{len(found)} blocks of {language} with {containing!r} in {document}"
    return found[0]


def inline_commands() -> Iterator[tuple[str, str]]:
    """Commands that a sentence or a table names, with the document."""
    for document in DOCUMENTS:
        prose = _FENCE.sub("", text_of(document))
        for match in _INLINE.finditer(prose):
            yield document, " ".join(match[1].split())


def first_cells(page: str, heading: str = "", table: str = "") -> set[str]:
    """What stands in backticks in the first cells of a page's rows, of the part below a heading;
    of the table whose first row begins so, where it is named."""
    text = text_of(f"docs/reference/{page}.md")
    if heading:
        text = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    if table:
        text = text.split(f"\n| {table}")[1].split("\n\n")[0]
    cells = re.findall(r"^\| ([^|]*) \|", text, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
