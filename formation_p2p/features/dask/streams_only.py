"""What a Dask client of a cluster connects with: the gang's streams alone.

A member may name any address as that of a worker, and a client that fetches results from workers
(`direct=True`, the methods of actors) connects to it. Over another protocol Dask would unpickle
what comes from there.
"""

from __future__ import annotations

from typing import Any, Final

from distributed.security import Security

# Its WebSocket connector takes no other option than those of a request, and does not ask whether
# it has to encrypt.
_NO_WEBSOCKET: Final = {"formation": "connects to no other addresses"}


class StreamsOnly(Security):  # type: ignore[misc]
    """`Client(cluster)` takes it from its cluster. Other connections raise RuntimeError or
    TypeError."""

    def get_connection_args(self, role: str) -> dict[str, Any]:
        """For Dask's connectors."""
        return {
            "ssl_context": None,
            "require_encryption": True,
            "extra_conn_args": _NO_WEBSOCKET,
        }
