"""Who may read each blob of a node, on its disk beside the blob: its rules, and its parties, for
whose leases it came here or was made. The parties of what has no rule are not on the disk.

What cannot be read any more is closed to all: a damaged file opens nothing.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

from formation_p2p.content.core.messages import Open
from formation_p2p.content.files import BlobFolder
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.records.core import codec
from formation_p2p.workload.core.blob import Blob, Cid
from formation_p2p.workload.core.data_rule import OPEN, DataRule
from formation_p2p.workload.core.scope import NOWHERE, Scope

log = logging.getLogger(__name__)

# Of one blob: each owner has one, and few have the same content.
MAX_RULES: Final = 16
# Of one blob, the latest.
MAX_PARTIES: Final = 64
_MAX_FILE_BYTES: Final = 8 * 1024
_CLOSED: Final = (DataRule(Scope.LOCAL, NOWHERE, "unknown"),)


def rule_of(reference: Blob | Open) -> DataRule:
    """Without one, beside others of the same content that have one, it is for all."""
    return reference.rule or OPEN


class BlobRules:
    """Under the lock of the store. One rule that allows a reader is enough."""

    def __init__(self, folder: BlobFolder) -> None:
        self._folder = folder
        self._rules: dict[Cid, tuple[DataRule, ...]] = {}
        self._parties: dict[Cid, tuple[PeerId, ...]] = {}

    def of(self, cid: Cid) -> tuple[DataRule, ...]:
        return self._rules.get(cid, ())

    def parties(self, cid: Cid) -> tuple[PeerId, ...]:
        return self._parties.get(cid, ())

    def known(self) -> tuple[Cid, ...]:
        """What has a rule."""
        return tuple(self._rules)

    def add(self, cid: Cid, rule: DataRule) -> None:
        """Raises OSError."""
        rules = tuple(dict.fromkeys((*self.of(cid), rule)))[-MAX_RULES:]
        self._write(cid, rules, self.parties(cid))
        self._rules[cid] = rules

    def add_party(self, cid: Cid, party: PeerId) -> None:
        """Raises OSError."""
        if party in (known := self.parties(cid)):
            return
        parties = (*known, party)[-MAX_PARTIES:]
        if rules := self.of(cid):
            self._write(cid, rules, parties)
        self._parties[cid] = parties

    def _write(self, cid: Cid, rules: tuple[DataRule, ...], parties: tuple[PeerId, ...]) -> None:
        packed = [*(each.pack() for each in rules), *parties]
        self._folder.write(cid, "rules", codec.encode(packed))

    def forget(self, cid: Cid) -> None:
        """All members may read it, or it is here no more. Raises OSError."""
        self._parties.pop(cid, None)
        if self._rules.pop(cid, None) is not None:
            self._folder.remove(cid, "rules")

    def load(self, cid: Cid, path: Path) -> None:
        """Raises OSError."""
        try:
            with path.open("rb") as file:
                raw = file.read(_MAX_FILE_BYTES + 1)
            most = MAX_RULES + MAX_PARTIES
            packed = codec.take_list(codec.decode(raw, _MAX_FILE_BYTES), "rules", most)
            rules = (each for each in packed if not isinstance(each, str))
            self._rules[cid] = tuple(map(DataRule.unpack, rules)) or _CLOSED
            self._parties[cid] = tuple(PeerId(each) for each in packed if isinstance(each, str))
        except (codec.Malformed, InvalidInput) as error:
            log.warning("%s is damaged, and the blob closed to others: %s", path, error)
            self._rules[cid] = _CLOSED
