"""Biscuit tokens, opened. biscuit-python parses what strangers send, and is kept to errors that
cost no more than the grant."""

from __future__ import annotations

from typing import Final

import biscuit_auth

from formation_p2p.core.errors import InvalidInput
from formation_p2p.trust.core.grant_form import FORM, STARTS, GrantForm

# Issued, handed on a few times, bound. Each costs its checker one signature (60 us).
MAX_BLOCKS: Final = 8


def open_token(form: GrantForm, root_id: bytes) -> biscuit_auth.Biscuit:
    """With every block's signature verified, from the root's on, and so many co-signatures as there
    are. Raises InvalidInput."""
    root_key = form.root_key(root_id)
    try:
        public_key = biscuit_auth.PublicKey(f"ed25519/{root_key.hex()}")
        token = biscuit_auth.Biscuit.from_bytes(form.token, public_key)
        # Around the signed blocks protobuf reads many forms as the same. What may stand before the
        # root's block, a hint at which root key it was, has no signature.
        has_one_form = form.token[:1] == STARTS[0] and bytes(token.to_bytes()) == form.token
    except (biscuit_auth.BiscuitValidationError, ValueError) as error:
        # The name of a split root is no key, mostly, and is taken for one beside a bare token.
        raise InvalidInput("grant", "it is of another network, or was altered") from error
    except BaseException as error:
        raise _unless_panic(error) from error
    if not has_one_form:
        raise InvalidInput("grant", FORM)
    if token.block_count() > MAX_BLOCKS:
        raise InvalidInput("grant", f"it was narrowed more than {MAX_BLOCKS - 1} times")
    form.check_cosigned(root_id)
    return token


def statements_of(token: biscuit_auth.Biscuit, block: int) -> list[str]:
    """Those of one block, as Biscuit prints them."""
    try:
        source = token.block_source(block)
    except biscuit_auth.BiscuitBlockError as error:
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
