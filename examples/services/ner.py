"""ner-extraction: names of people, organisations, places, dates, sums and addresses, by rules."""

from __future__ import annotations

import re
from typing import Any

from serving import Request, serve

_WORD = r"[A-Z][a-z]+(?:-[A-Z][a-z]+)?"
_MONTH = "January|February|March|April|May|June|July|August|September|October|November|December"
RULES = [
    ("EMAIL", re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("URL", re.compile(r"https?://[^\s<>\"]+")),
    ("MONEY", re.compile(r"(?:[$€£]|(?:USD|EUR|GBP) )\s?\d[\d,]*(?:\.\d+)?(?:\s?(?:million|bn))?")),
    ("DATE", re.compile(rf"\b\d{{4}}-\d\d-\d\d\b|\b\d{{1,2}} (?:{_MONTH})(?: \d{{4}})?\b")),
    ("ORG", re.compile(rf"\b(?:{_WORD} )+(?:Inc|Ltd|GmbH|AG|Bank|University|Council|LLC)\b\.?")),
    ("PERSON", re.compile(rf"\b(?:Mr|Mrs|Ms|Dr|Prof)\.? {_WORD}(?: {_WORD})?\b")),
    ("PLACE", re.compile(rf"\b(?:in|at|from|near) ({_WORD}(?: {_WORD})?)\b")),
    ("PERSON", re.compile(rf"\b{_WORD} {_WORD}\b")),
]


def entities(text: str) -> list[dict[str, Any]]:
    taken = [False] * (len(text) + 1)
    found = []
    for label, rule in RULES:
        for match in rule.finditer(text):
            start, end = match.span(match.lastindex or 0)
            if not any(taken[start:end]):
                taken[start:end] = [True] * (end - start)
                found.append({"label": label, "text": text[start:end], "start": start, "end": end})
    return sorted(found, key=lambda each: each["start"])


def extract(request: Request) -> Any:
    return {"entities": entities(request.text("text"))}


if __name__ == "__main__":
    serve({("POST", "/extract"): extract, ("POST", "/ner"): extract})
