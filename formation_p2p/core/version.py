"""Which release this is, as setup.cfg has it."""

from typing import Final

RELEASE: Final = "0.1.0"
