"""The scheduler's outbox: what is to be done about one event, in the order in which it is done."""

from __future__ import annotations

from formation_p2p.core.dispatch.job_events import EmitJobEvent, JobEvent, SchedulerEffect


class Outbox:
    """Messages come first, since workers wait for them; then job events; acknowledgements last: a
    result is acknowledged once it has been reported."""

    def __init__(self) -> None:
        self._effects: list[SchedulerEffect] = []
        self._events: list[SchedulerEffect] = []
        self._acknowledgements: list[SchedulerEffect] = []

    def emit(self, effect: SchedulerEffect) -> None:
        self._effects.append(effect)

    def notify(self, job_id: str, event: JobEvent) -> None:
        self._events.append(EmitJobEvent(job_id, event, cause=type(event).__name__))

    def acknowledge(self, effect: SchedulerEffect) -> None:
        self._acknowledgements.append(effect)

    def flush_events(self) -> None:
        """Report what has happened so far before anything else is emitted."""
        self._effects += self._events
        self._events.clear()

    def take(self) -> list[SchedulerEffect]:
        effects = [*self._effects, *self._events, *self._acknowledgements]
        if effects:
            self._effects, self._events, self._acknowledgements = [], [], []
        return effects
