"""Streams that are kept give way to requests that wait."""

from __future__ import annotations

import asyncio

from formation_p2p.features.services.api.awaited import Awaited


def test_who_waits_for_long_has_what_is_kept_given_up() -> None:
    async def story() -> None:
        given_up = asyncio.Event()
        awaited = Awaited(given_up.set)
        with awaited.waiting():
            assert not awaited
            await given_up.wait()
            assert awaited
            with awaited.waiting():
                pass  # one that is served at once changes nothing
            assert awaited
        assert not awaited

    asyncio.run(story())
