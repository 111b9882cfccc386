"""What goes wrong in this package itself."""

from __future__ import annotations

import pytest

from formation_p2p.core.errors import InvariantBroken, ensure


def test_what_does_not_hold_is_said() -> None:
    ensure(True, "two and two are five")
    with pytest.raises(InvariantBroken, match="two and two are five"):
        ensure(False, "two and two are five")
