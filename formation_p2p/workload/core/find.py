"""How workers are looked for, as a person asks for it.

| find | what is done |
| --- | --- |
| dht | the shards of the DHT are read, and the workers found are asked |
| notice | a want is left with the peers that hold the shard; what they know is asked later |
| dht+notice | both at once |
| announce | a want is spread over some hundred peers; the DHT is read where none offers |
"""

from __future__ import annotations

from enum import StrEnum

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown


class Find(StrEnum):
    DHT = "dht"
    NOTICE = "notice"
    DHT_NOTICE = "dht+notice"
    ANNOUNCE = "announce"

    @property
    def leaves_notice(self) -> bool:
        return self in (Find.NOTICE, Find.DHT_NOTICE)


def parse_find(text: str) -> Find:
    """Raises InvalidInput."""
    for find in Find:
        if text == find.value:
            return find
    raise InvalidInput("find", f"{shown(text)} is none of {', '.join(Find)}")
