"""Alice's services part, whose peers are played by the test.

played = Played(BOB, CAROL)
reader = CatalogReader(played.means)
reader.read(NOW, heard)
played.answer(lambda to, request: ..., NOW)
"""

import random
from collections.abc import Callable

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Published, Searched
from formation_p2p.dht.core.rpc import SendRequest
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.features.services.core.events import ServiceEffect
from formation_p2p.features.services.core.holders import Holders
from formation_p2p.features.services.core.means import Inquiries, Means
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.shelf import Shelf
from formation_p2p.trust.core.membership import Membership
from tests.support.dht_world import NETWORK, Alone, person
from tests.support.services_world import NOW, ROOT, granted

PARAMETERS = ServiceParameters()
Plays = Callable[[Contact, kad.Request], kad.Reply | None]


class Played:
    """It knows these peers. Of a `client` others keep nothing with it."""

    def __init__(
        self,
        *knows: Contact,
        is_client: bool = False,
        discovery: DiscoveryParameters = DiscoveryParameters(),
    ) -> None:
        trust = Membership(ROOT.public_key)
        shelf = Shelf(NETWORK, trust.denies_claim, trust.denies_publish)
        self.alone = Alone(knows=knows, shelf=shelf)
        self.dht = self.alone.dht
        if is_client:
            self.dht.moved((), NOW)
            assert self.dht.is_client
            self.dht.take()
        own = person("alice")
        self.knows = knows
        self.finder = Finder(self.dht, NETWORK, parameters=discovery)
        self.means = Means(
            identity=own,
            dht=self.dht,
            inquiries=Inquiries(self.dht, self.finder),
            holders=Holders(own.peer_id, self.dht, PARAMETERS),
            shelf=shelf,
            rng=random.Random(1),
            parameters=PARAMETERS,
            own=lambda: self.alone.own,
            grant=lambda: granted(own),
            machine=lambda: None,
        )

    def answer(self, plays: Plays, now: Moment = NOW) -> list[kad.Request]:
        """Until nothing more is asked; returns what was. Without a reply a request fails."""
        asked = []
        while sent := self._sent(now):
            for each in sent:
                asked.append(each.message)
                reply = plays(each.to, each.message)
                if isinstance(each.message, kad.FindNode):
                    reply = kad.Nodes(self.knows)
                if reply is None:
                    self.alone.time_out(each, now)
                else:
                    self.alone.respond(each, reply, now)
        return asked

    def told(self) -> list[ServiceEffect]:
        effects, self.means.effects = self.means.effects, []
        return effects

    def _sent(self, now: Moment) -> list[SendRequest]:
        sent: list[SendRequest] = []
        while True:
            effects, completed = self.dht.take()
            sent += [each for each in effects if isinstance(each, SendRequest)]
            for each in completed:
                assert not isinstance(each, Published)
                if not self.means.inquiries.ended(each, now):
                    assert isinstance(each, Searched)
                    self.finder.searched(each, now)
            if not completed:
                return sent
