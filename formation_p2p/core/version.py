"""Which release this is, as setup.cfg has it, and with which others it works."""

from typing import Final

RELEASE: Final = "0.1.0"
# Of the messages and records that nodes of Formation exchange. Raise it with the first change after
# a release that an older node cannot read: two versions refuse each other.
VERSION: Final = 2
