"""What `make docs` adds to the pages of docs/: a table of contents that follows the folders, the
reference of the command from its own help, and that of the Python names from public.py.

A link to a file outside docs/ becomes plain text, once the file is there: the site is read without
a checkout.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tools.man import commands  # noqa: E402 - mkdocs runs this file from its own path

FIRST: Final = {"index.md": "Start", "tutorial.md": "Tutorial"}
SECTIONS: Final = {
    "How-to": "how-to/",
    "Reference": "reference/",
    "Explanation": "explanation/",
    "Decisions": "decisions/",
}
COMMANDS: Final = "reference/command.md"
# A page for each group of public names: those of the modules that begin so. The first that fits.
PYTHON: Final = {
    "Node, for asyncio": ("api.node",),
    "SyncNode, without await": ("api.sync",),
    "Jobs and results": ("api.", "jobs.", "peer.core.story", "state."),
    "Errors and refusals": ("core.",),
    "Work": ("workload.", "drivers.python_checkpoint"),
    "Placement": ("placement.", "discovery."),
    "Gangs": ("features.gangs.",),
    "Services": ("features.services.",),
    "Drivers": ("drivers.",),
    "Workers, trust and settings": ("",),
}
HELP_COLUMNS: Final = 90
_LINK: Final = re.compile(r"\[([^\]]*)\]\(\s*((?:\.\./|deploy)[^)\s#]*)(#[^)\s]*)?\s*\)")
_FENCE: Final = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    made = {COMMANDS: command_page(), **dict(python_pages())}
    for path, text in made.items():
        files.append(File.generated(config, path, content=text))
    config.nav = contents(files)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    folder = (Path(config.docs_dir) / page.file.src_uri).parent

    def unlinked(match: re.Match[str]) -> str:
        text, target, _ = match.groups()
        path = (folder / target).resolve()
        if not path.exists():
            raise PluginError(f"{page.file.src_uri} links to {target}, which is not there")
        is_page = path.is_relative_to(config.docs_dir) and path.suffix == ".md"
        if is_page:
            return match[0]
        name = path.relative_to(ROOT).as_posix()
        return text if name in text else f"{text} (`{name}`)"

    parts = []
    end = 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(unlinked, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(unlinked, markdown[end:])])


def contents(files: Files) -> list[Any]:
    """The first page and the tutorial, then a section for each folder, its pages by their titles.
    Pages in no folder are among the explanations."""
    pages = {file.src_uri: title_of(file) for file in files.documentation_pages()}
    made = list(dict(python_pages()))
    found: dict[str, list[Any]] = {name: [] for name in SECTIONS}
    for path in sorted(pages, key=lambda path: (not _is_index(path), pages[path].lower())):
        if path in FIRST or path in made:
            continue
        inside = [name for name, folder in SECTIONS.items() if path.startswith(folder)]
        found[inside[0] if inside else "Explanation"].append(path)
    found["Reference"].append({"Python": made})
    found["Explanation"].append({"Decisions": sorted(found.pop("Decisions"), key=_decision)})
    named = [{name: path} for path, name in FIRST.items() if path in pages]
    return [*named, *({name: paths} for name, paths in found.items())]


def title_of(file: File) -> str:
    heading = re.search(r"^# (.+)$", file.content_string, re.MULTILINE)
    return heading[1].strip("`") if heading else file.src_uri


def _is_index(path: str) -> bool:
    return Path(path).name in ("index.md", "README.md")


def _decision(path: str) -> tuple[bool, str]:
    return not _is_index(path), path


# -- the command --------------------------------------------------------------------------------


def command_page() -> str:
    parts = [
        "# The command\n",
        "What `--help` prints, of `formation` and of each of its commands.\n",
    ]
    for context, command in commands():
        context.terminal_width = context.max_content_width = HELP_COLUMNS
        text = command.get_help(context)
        parts.append(f"## `{context.command_path}`\n\n```text\n{text}\n```\n")
    return "\n".join(parts)


# -- Python -------------------------------------------------------------------------------------


def python_pages() -> Iterator[tuple[str, str]]:
    """Their paths and texts: a line for mkdocstrings for each name."""
    names: dict[str, list[str]] = {title: [] for title in PYTHON}
    for module, name in public_names():
        begins = next(title for title, starts in PYTHON.items() if module.startswith(starts))
        names[begins].append(f"::: formation_p2p.{module}.{name}\n")
    for title, lines in names.items():
        path = re.sub(r"[^a-z]+", "-", title.lower())
        yield f"reference/python/{path}.md", "\n".join([f"# {title}\n", *lines])


def public_names() -> Iterator[tuple[str, str]]:
    """What public.py imports: the module below the package, and the name."""
    tree = ast.parse((ROOT / "formation_p2p" / "public.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                yield node.module.removeprefix("formation_p2p."), alias.name
