"""Data is read inside its scope and region, and what is made of it as well."""

import pytest

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.placement.core.task_options import TaskOptions, within_rules
from formation_p2p.trust.core.charter import Charter, Region
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.data_rule import OPEN, DataRule, combined
from formation_p2p.workload.core.hints import Hints, Kind
from formation_p2p.workload.core.plan import plan_of
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope
from tests.support.stories import identity

ACME = Place(org="acme", cell="kitchen")
BETA = Place(org="beta")
EU = DataRule(region="eu")
ORG = DataRule(Scope.ORG, ACME)
PARTIES = DataRule(Scope.LOCAL, ACME, "eu")
BOTH = DataRule(Scope.ORG, ACME, "eu", parties=True)
ROOT = identity("root")
NOW = Moment(0.0, 1_800_000_000.0)


def blob(rule: DataRule | None = None, content: bytes = b"data") -> Blob:
    return Blob(Cid(RAW, digest_of(content)), len(content), (), rule)


@pytest.mark.parametrize(
    ("rule", "place", "region", "party", "why"),
    [
        (DataRule(), NOWHERE, "", False, None),
        (EU, NOWHERE, "eu", False, None),
        (EU, ACME, "us", True, "keeps it in the region eu, and the charter has you in us"),
        (EU, ACME, "", True, "keeps it in the region eu, and the charter has you in no region"),
        (ORG, Place(org="acme"), "", False, None),
        (ORG, BETA, "", False, "keeps it within the org of its owner"),
        # A lease of a worker that has it is no way to another's data.
        (ORG, BETA, "", True, "keeps it within the org of its owner"),
        (PARTIES, ACME, "eu", True, None),
        (PARTIES, ACME, "eu", False, "keeps it for the parties of its job"),
        (PARTIES, ACME, "us", True, "keeps it in the region eu, and the charter has you in us"),
        (BOTH, ACME, "eu", True, None),
        (BOTH, ACME, "eu", False, "keeps it for the parties of its job"),
        (BOTH, BETA, "eu", True, "keeps it within the org of its owner"),
    ],
)
def test_who_reads(rule: DataRule, place: Place, region: str, party: bool, why: str | None) -> None:
    assert rule.refuses(place, region, is_party=party) == why


def test_a_rule_travels_with_the_reference() -> None:
    for rule in (None, EU, ORG, PARTIES, BOTH):
        assert Blob.unpack(blob(rule).pack()) == blob(rule)
    assert len(blob().pack()) == 3  # as before there were any
    for wrong in (
        [1],
        [True, ["", "", ""], ""],
        [9, ["", "", ""], ""],
        [1, ["", "", ""], "a b"],
        [1, ["", "", ""], "", False],
        [1, ["", "", ""], "", 1],
        [1, ["", "", ""], "", True, True],
    ):
        with pytest.raises(InvalidInput):
            Blob.unpack([*blob().pack(), wrong])
    with pytest.raises(InvalidInput):
        Blob.unpack([*blob(EU).pack(), EU.pack()])


def test_what_is_made_of_data_is_for_those_who_may_read_all_of_it() -> None:
    assert combined([]) is None
    assert combined([EU]) == EU
    assert combined([OPEN]) is None  # which opens nothing else
    assert combined([OPEN, EU]) == EU
    assert combined([EU, ORG]) == DataRule(Scope.ORG, ACME, "eu")
    assert combined([EU, PARTIES]) == combined([PARTIES, EU]) == PARTIES
    assert combined([ORG, EU, PARTIES]) == combined([PARTIES, ORG]) == BOTH
    assert combined([BOTH, OPEN]) == combined([BOTH, PARTIES]) == BOTH
    with pytest.raises(InvalidInput, match="some are kept in eu and others in us"):
        combined([EU, DataRule(region="us")])
    kitchen, all_orgs = DataRule(Scope.CELL, ACME), DataRule(Scope.COMMONS, BETA)
    assert combined([ORG, kitchen, all_orgs]) == combined([kitchen, ORG]) == kitchen
    for other in (DataRule(Scope.ORG, BETA), DataRule(Scope.CELL, Place(org="acme", cell="attic"))):
        with pytest.raises(InvalidInput, match="within the circle of one owner"):
            combined([kitchen, other])


def test_a_job_goes_no_further_than_its_inputs() -> None:
    def options(*rules: DataRule | None, **given: object) -> TaskOptions:
        inputs = {f"f{n}": blob(rule, b"%d" % n) for n, rule in enumerate(rules)}
        plan = plan_of(ProcessSpec(("true",), inputs=inputs))
        return within_rules(TaskOptions(**given), plan)  # type: ignore[arg-type]

    assert options() == options(None) == TaskOptions()
    inside = options(EU, ORG, hints=Hints(away_from=("a",), required={Kind.AWAY}))
    assert (inside.scope, inside.hints.region) == (Scope.ORG, "eu")
    assert inside.hints.required == {Kind.AWAY, Kind.REGION}
    assert options(ORG, scope=Scope.CELL).scope == Scope.CELL
    assert options(PARTIES).scope == Scope.COMMONS
    assert options(PARTIES, ORG).scope == options(ORG, PARTIES).scope == Scope.ORG
    assert options(BOTH).scope == Scope.ORG
    assert options(ORG, DataRule(Scope.CELL, ACME)).scope == Scope.CELL
    assert options(EU, hints=Hints(region="eu")).hints.region == "eu"
    with pytest.raises(InvalidInput, match="its inputs stay in eu; leave the hint out"):
        options(EU, hints=Hints(region="us"))


def test_the_charter_says_who_is_in_a_region() -> None:
    trust = Membership(ROOT.public_key)
    anna, ben = identity("anna").peer_id, identity("ben").peer_id
    grants = {
        who: issue(ROOT, Rights(1_900_000_000, place=place), who)
        for who, place in ((anna, ACME), (ben, BETA))
    }

    def reads(who: str, *rules: DataRule, party: bool = False) -> str | None:
        peer = anna if who == "anna" else ben
        return trust.denies_read(rules, grants[peer], peer, NOW, party=party)

    assert trust.region_of(grants[anna], anna, NOW) is None
    assert trust.common_rule(ACME) == ()
    assert "no region" in str(reads("anna", EU))
    keys = KeySet(1, (ROOT.public_key,))
    rules = Charter(
        version=1,
        network=trust.network_id,
        keys=keys,
        issued_unix_s=int(NOW.unix_s),
        expires_unix_s=int(NOW.unix_s) + 9999,
        regions=(Region("eu", frozenset({"acme"})),),
        scope=Scope.ORG,
    )
    trust.adopt(sign(draft(rules, keys), ROOT).raw, NOW)
    assert trust.region_of(grants[anna], anna, NOW) == "eu"
    assert trust.region_of(grants[ben], ben, NOW) == ""
    assert trust.region_of(b"no grant", anna, NOW) == ""
    assert trust.common_rule(ACME) == (ORG,)
    assert reads("anna", EU) is None
    assert "no region" in str(reads("ben", EU, party=True))
    # Of several owners' rules one that allows it is enough.
    assert reads("ben", EU, DataRule(Scope.ORG, BETA)) is None
    assert reads("ben") is None


def test_a_region_is_a_name() -> None:
    with pytest.raises(InvalidInput, match="is not a name"):
        DataRule(region="a b")
