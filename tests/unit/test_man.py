"""The manual page has every command and option, in words that man(1) takes."""

import shutil
import subprocess

import pytest

from tools.man import commands, page


def test_the_manual_page_has_each_command_and_option() -> None:
    text = page()
    for context, command in commands():
        if context.parent is not None:
            assert f".SH {context.command_path.upper()}\n" in text
        for parameter in command.get_params(context):
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                assert option.replace("-", "\\-") in text, (context.command_path, option)
    assert "\b" not in text


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not on this machine")
def test_groff_has_nothing_to_say_against_it() -> None:
    command = ["groff", "-man", "-ww", "-z", "-k"]
    done = subprocess.run(command, input=page(), capture_output=True, text=True, check=True)
    assert done.stderr == ""
