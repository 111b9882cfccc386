"""What a gateway says of services that are no gap."""

from dataclasses import replace

from formation_p2p.features.gateway.coverage import Need, Note, standings_of
from formation_p2p.features.gateway.sources import ServicesView
from formation_p2p.features.services.core.spec import WorkerType
from tests.support.gateways import CATALOG, replica

SERVICE = replace(CATALOG[0], version=2)


def told(*versions: int, wanted: int | None = None) -> tuple[tuple[Note, ...], str]:
    replicas = tuple(
        replica(SERVICE.name, f"worker{n}", version=version) for n, version in enumerate(versions)
    )
    counts = {} if wanted is None else {SERVICE.name: wanted}
    [standing] = standings_of(ServicesView((SERVICE,), replicas, wanted=counts))
    return standing.notes, standing.why


def test_a_service_with_the_replicas_and_the_version_of_its_spec_has_no_note() -> None:
    assert told(2, 2) == ((), "2 of 2 workers are ready")
    assert told(0, 2)[0] == ()  # a worker that speaks HTTP only says no version


def test_more_or_fewer_replicas_than_at_first_are_told() -> None:
    notes, why = told(2, 2, wanted=SERVICE.replicas.target + 1)
    assert notes == (Note.SCALED,)
    assert "scaled by its load from 2 to 3" in why


def test_an_older_version_beside_the_newest_is_an_update() -> None:
    notes, why = told(1, 2)
    assert notes == (Note.UPDATING,)
    assert "version 2 is replacing an older one: 1 of 2 are new" in why


def test_what_is_needed_is_a_sentence() -> None:
    assert Need(WorkerType.GPU, 2, ()).sentence == "We need 2 more GPU workers"
    assert Need(WorkerType.CPU, 1, ()).sentence == "We need 1 more CPU worker"


def test_what_could_not_be_read_has_no_note() -> None:
    unknown = ServicesView((SERVICE,), (), unknown=frozenset({SERVICE.name}), wanted={})
    [standing] = standings_of(unknown)
    assert standing.notes == ()
