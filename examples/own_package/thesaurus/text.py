"""Texts, and the words in them that have others beside them."""

from dataclasses import dataclass
from importlib.resources import files


@dataclass
class Text:
    author: str
    words: str


def synonyms(text: Text) -> dict[str, list[str]]:
    """Runs on a worker, where it finds the data of its package as it does here."""
    table = (files("thesaurus") / "data" / "synonyms.txt").read_text()
    known = dict(line.split(": ") for line in table.splitlines())
    return {
        word: known[word].split(", ")
        for word in text.words.replace(",", "").split()
        if word in known
    }
