"""API keys: `Authorization: Bearer KEY` or `x-api-key: KEY`, on every route but the health ones."""

import hmac

from starlette.types import ASGIApp, Receive, Scope, Send

from pomona.gateway.cache_salt import tenant_of
from pomona.gateway.errors import ApiError, error_response


class Authenticate:
    """Lets a request pass if it carries one of the keys, or if there are none; says in the scope whose it is.

    Every key is compared in full, so that the time tells nothing. Keys are never logged.
    """

    def __init__(self, app: ASGIApp, keys: tuple[str, ...], *, apart: bool = False) -> None:
        """With `apart` each key is a tenant of its own, which shares no stored prefix with the others."""
        self._app = app
        self._keys = tuple(key.encode() for key in keys)
        self._tenants = tuple(tenant_of(key) if apart else "" for key in self._keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state: dict[str, str] = scope.setdefault("state", {})
        if not self._keys:
            client = scope.get("client")
            state["client"] = client[0] if client else ""
            state["owner"] = state["tenant"] = ""
        elif not (scope["path"] == "/health" or scope["path"].startswith("/health/")):
            found = self._find(presented_keys(scope))
            if found is None:
                error = ApiError(
                    401,
                    "a valid API key is needed, as 'Authorization: Bearer KEY' or 'x-api-key: KEY'",
                    code="invalid_api_key",
                    headers={"www-authenticate": "Bearer"},
                )
                await error_response(error, scope)(scope, receive, send)
                return
            state["client"] = state["owner"] = f"key-{found}"
            state["tenant"] = self._tenants[found]
        await self._app(scope, receive, send)

    def _find(self, presented: list[bytes]) -> int | None:
        found = None
        for candidate in presented:
            for index, key in enumerate(self._keys):
                if hmac.compare_digest(candidate, key):
                    found = index
        return found


def presented_keys(scope: Scope) -> list[bytes]:
    keys: list[bytes] = []
    for name, value in scope["headers"]:
        if name == b"x-api-key":
            keys.append(value.strip())
        elif name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                keys.append(key.strip())
    return keys
