"""What a person is told of gates that are lost."""

import logging

import pytest

from formation_p2p.dht.gate_log import LOST_S, GateLog
from tests.support.dht_world import person

GATE = person("gate").peer_id


def test_a_gate_is_told_of_once_it_is_gone_for_a_while_and_when_it_is_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "formation_p2p.gates")
    log = GateLog()
    for missing, now_s in (
        ({GATE}, 0.0),
        (set(), LOST_S),  # it was restarted
        ({GATE}, 10.0),
        ({GATE}, 10.0 + LOST_S - 0.1),
    ):
        log.look(missing, now_s)
    assert caplog.records == []
    for missing, now_s in (
        ({GATE}, 10.0 + LOST_S),
        ({GATE}, 100.0),
        (set(), 101.0),
        (set(), 102.0),
    ):
        log.look(missing, now_s)
    said = [(each.levelname, each.getMessage().split(" is ", 1)[1]) for each in caplog.records]
    assert said == [("WARNING", "lost; it is dialled again and again"), ("INFO", "back")]
