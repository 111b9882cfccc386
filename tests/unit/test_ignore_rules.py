"""What a .dockerignore leaves out."""

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.builds.core.ignore_rules import (
    MAX_RULE_CHARS,
    MAX_RULES,
    IgnoreRules,
    parse_ignore_rules,
)


@pytest.mark.parametrize(
    ("text", "left_out", "kept"),
    [
        ("", [], ["a"]),
        ("# a\n\na", ["a", "a/b"], ["b", "b/a", "ab"]),
        ("/a/", ["a", "a/b"], ["b/a"]),
        ("./a/./b", ["a/b/c"], ["a/c"]),
        (".\n!\n/", [], ["a"]),
        ("*.o", ["x.o"], ["a/x.o", "x.oo"]),
        ("*/*.o", ["a/x.o"], ["x.o", "a/b/x.o"]),
        ("**/*.o", ["x.o", "a/x.o", "a/b/x.o"], ["x.c"]),
        ("a/**", ["a/b", "a/b/c"], ["a"]),
        ("file?", ["file1", "filex/y"], ["file", "file10"]),
        ("[ab]c", ["ac", "bc"], ["cc"]),
        (r"\*", ["*"], ["a"]),
        ("a.b", ["a.b"], ["axb"]),
        ("*\n!keep\n!a/b", ["c", "a/c"], ["keep", "keep/x", "a/b"]),
        ("!a\na", ["a"], ["b"]),
    ],
)
def test_which_names(text: str, left_out: list[str], kept: list[str]) -> None:
    rules = parse_ignore_rules(text)
    assert [name for name in left_out + kept if rules.leave_out(name)] == left_out


def test_without_a_file_nothing_is_left_out() -> None:
    assert not IgnoreRules().leave_out("a/b")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("\n[a", "line 2: '.a' is not a pattern; close its brackets"),
        ("[b-a]", "is not a pattern"),
        ("a" * (MAX_RULE_CHARS + 1), "there are at most"),
        ("a\n" * (MAX_RULES + 1), "there are at most"),
    ],
)
def test_what_is_no_pattern(text: str, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        parse_ignore_rules(text)
