"""Who may ask: API keys, compared in constant time."""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from typing import Final

from service.errors import Forbidden, Unauthenticated

BEARER: Final = "bearer "


class Credentials:
    """The accepted API keys; without any, everyone may ask.

    Attributes:
        asked_for: Whether a key is needed.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys: Final = [key.encode() for key in keys]
        self.asked_for: Final = bool(self._keys)

    def check(self, authorization: str, api_key: str) -> None:
        """Check the headers `authorization: Bearer KEY` and `x-api-key: KEY`; one of them is enough.

        Raises:
            Unauthenticated: a key is needed and none came.
            Forbidden: the key is not one of ours.
        """
        if not self._keys:
            return
        given = api_key or (authorization[len(BEARER) :] if authorization.lower().startswith(BEARER) else "")
        if not given:
            raise Unauthenticated(
                "expected an API key in `authorization: Bearer KEY` or `x-api-key`, got none"
            )
        # Every key is compared, so that the time taken does not tell which one came close.
        if not any([hmac.compare_digest(given.encode(), key) for key in self._keys]):  # noqa: C419
            raise Forbidden("the API key is not valid")
