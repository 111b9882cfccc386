"""Tests in network namespaces: whether a machine that forbids them may do without."""

from typing import Final

# .ci/run sets it: there, a machine that cannot run these tests is one on which they fail.
REQUIRED: Final = "FORMATION_REQUIRES_NAMESPACES"
