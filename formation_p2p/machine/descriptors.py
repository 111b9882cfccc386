"""How many files and connections this process may have open."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)


def raise_descriptor_limit() -> None:
    """To what the machine allows: a process begins with 1,024 as a rule, and a gate has a
    connection with each peer that it relays for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("this process can have %d files and connections only: %s", soft, error)
