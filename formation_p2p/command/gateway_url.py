"""The URL of a gateway with a token, as an invite: what `COORDINATOR_URL` of a container may be.

The token is a grant in base64url, after `#` or as `?token=`. It stays here: the gateway is asked
for the facts of the network alone, which are public. A gateway that names another root key gains
nothing, since the grant does not verify under it.
"""

from __future__ import annotations

import base64
import binascii
import json
import urllib.error
import urllib.request
from typing import Final
from urllib.parse import parse_qs, urlsplit, urlunsplit

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.trust.core.network import Network

# Where a gateway says which network it is in.
PATH: Final = "/api/network"
# A gateway that is there answers from memory.
ANSWER_S: Final = 10.0
# A root key and at most a few dozen gates of up to 1 KiB.
MAX_ANSWER_BYTES: Final = 64 * 1024
_FIELD: Final = "join"


def invite_from(url: str) -> str:
    """The invite to the network of the gateway at `url`, with the token of `url` as its grant.

    Raises InvalidInput where the URL has no token, or its token is no grant of that network;
    LocalError where no gateway answers there. Neither repeats the token, which is a secret.
    """
    parts = urlsplit(url)
    token = parts.fragment or "".join(parse_qs(parts.query).get("token", [])[:1])
    where = urlunsplit((parts.scheme, parts.netloc, parts.path.rstrip("/"), "", ""))
    if not parts.hostname or not token:
        problem = f"{where} has no token; write it like http://HOST:8080/#TOKEN"
        raise InvalidInput(_FIELD, problem)
    try:
        grant = base64.b64decode(token + "=" * (-len(token) % 4), altchars="-_", validate=True)
    except (ValueError, binascii.Error):
        problem = f"the token after {where} is incomplete or was altered; paste all of it again"
        raise InvalidInput(_FIELD, problem) from None
    root_public_key, gates = _facts_of(where)
    return Network(root_public_key, gates, grant).invite()


def _facts_of(where: str) -> tuple[bytes, tuple[str, ...]]:
    try:
        with urllib.request.urlopen(where + PATH, timeout=ANSWER_S) as answer:
            body = answer.read(MAX_ANSWER_BYTES + 1)
        if len(body) > MAX_ANSWER_BYTES:
            raise ValueError("the answer is too long")
        facts = json.loads(body)
        return bytes.fromhex(facts["root_public_key"]), tuple(map(str, facts["gates"]))
    except urllib.error.URLError as error:
        problem = f"no gateway answers at {where}: {error}; is `formation gateway` running there?"
        raise LocalError(problem) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"what answers at {where} is not a gateway of this version: {error!r}"
        raise LocalError(problem) from error
