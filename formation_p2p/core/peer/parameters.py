"""The parameters of every protocol that a peer takes part in, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.discovery.publication_parameters import PublicationParameters


@dataclass(frozen=True, slots=True)
class PeerParameters:
    """One field for each protocol. The reason of each value stands beside it, in its own class."""

    publication: PublicationParameters = field(default_factory=PublicationParameters)


DEFAULT_PARAMETERS: Final = PeerParameters()
