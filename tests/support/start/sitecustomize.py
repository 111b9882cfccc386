"""Imported at its start by each Python program that tests start (programs.py): SIGQUIT has it print
its stacks, as `formation` does."""

import contextlib

with contextlib.suppress(ImportError):  # an environment without the package
    from formation_p2p.command.stacks import print_on_quit

    print_on_quit()
