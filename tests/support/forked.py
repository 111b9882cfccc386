"""Programs that share what tests import as well."""

from simulations.forked import Forked, import_before

__all__ = ["Forked"]

import_before("tests.support.stacks", "tests.support.waiting")
