"""A grant's Biscuit token, opened: each block's signature verified, and what it states as text.

biscuit-python parses what strangers send, and is kept to errors that cost no more than the grant.
"""

from __future__ import annotations

from typing import Final

from biscuit_auth import Biscuit, BiscuitBlockError, BiscuitValidationError, PublicKey

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.records.profile import MAX_GRANT_BYTES

# Issued, handed on a few times, bound. Each costs its checker one signature (60 us).
MAX_BLOCKS: Final = 8


def open_token(grant: bytes, root_public_key: bytes) -> Biscuit:
    """With every block's signature verified, from the root's on. Raises InvalidInput."""
    if len(grant) > MAX_GRANT_BYTES:
        raise InvalidInput("grant", f"{len(grant)} bytes; at most {MAX_GRANT_BYTES} are allowed")
    try:
        token = Biscuit.from_bytes(grant, PublicKey(f"ed25519/{root_public_key.hex()}"))
    except BiscuitValidationError as error:
        problem = "it is of another network, or was altered"
        raise InvalidInput("grant", problem) from error
    except BaseException as error:
        raise _unless_panic(error) from error
    if token.block_count() > MAX_BLOCKS:
        raise InvalidInput("grant", f"it was narrowed more than {MAX_BLOCKS - 1} times")
    return token


def statements_of(token: Biscuit, block: int) -> list[str]:
    """Those of one block, as Biscuit prints them."""
    try:
        source = token.block_source(block)
    except BiscuitBlockError as error:
        raise InvalidInput("grant", "one of its blocks cannot be read") from error
    except BaseException as error:
        raise _unless_panic(error) from error
    return [statement for statement in source.split(";\n") if statement]


def _unless_panic(error: BaseException) -> BaseException:
    """What to raise for an error that biscuit-python does not declare. A panic of its Rust code
    is not an Exception, and would pass every guard and end the node; here it costs the grant."""
    if type(error).__name__ == "PanicException":
        return InvalidInput("grant", "it could not be read")
    return error
