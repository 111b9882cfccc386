"""document-processing: the text of HTML, Markdown, CSV, DOCX and plain text, and pieces of it."""

from __future__ import annotations

import csv
import io
import re
import zipfile
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from serving import Refused, Request, serve

WORDS = 200  # in a piece
OVERLAP = 20
_PARAGRAPH = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}p"
MAX_UNPACKED_BYTES = 16 * 1024 * 1024


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.hidden = 0

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")
        if tag in ("p", "div", "li", "h1", "h2", "h3", "tr"):
            self.parts.append("\n")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.parts.append(data)


def text_of(content: bytes, kind: str) -> str:
    if content[:2] == b"PK":
        try:
            with zipfile.ZipFile(io.BytesIO(content)) as packed:
                if packed.getinfo("word/document.xml").file_size > MAX_UNPACKED_BYTES:
                    raise Refused(413, "the document is too large")
                root = ElementTree.fromstring(packed.read("word/document.xml"))
        except (KeyError, zipfile.BadZipFile, ElementTree.ParseError):
            raise Refused(415, "it is packed, and no DOCX") from None
        return "\n".join("".join(each.itertext()) for each in root.iter(_PARAGRAPH))
    text = content.decode(errors="replace")
    if "html" in kind or text.lstrip().lower().startswith(("<!doctype html", "<html")):
        parser = _Text()
        parser.feed(text)
        return "".join(parser.parts)
    if "csv" in kind:
        return "\n".join(" | ".join(row) for row in csv.reader(io.StringIO(text)))
    if "markdown" in kind:
        return re.sub(r"(?m)^#+\s*|[*_`]|\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return text


def process(request: Request) -> Any:
    text = text_of(request.body, request.headers.get("content-type", ""))
    words = text.split()
    starts = range(0, max(len(words), 1), WORDS - OVERLAP)
    pieces = [" ".join(words[at : at + WORDS]) for at in starts]
    return {"words": len(words), "text": text, "chunks": [piece for piece in pieces if piece]}


if __name__ == "__main__":
    serve({("POST", "/process"): process})
