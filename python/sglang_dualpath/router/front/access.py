"""Who may ask for what: clients by one key, administration by another."""

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from aiohttp import web

from sglang_dualpath.router.front.errors import refuse

PUBLIC_PATHS = frozenset({"/health", "/liveness", "/readiness", "/metrics", "/openapi.json"})

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Middleware(Protocol):
    """What aiohttp calls around each handler."""

    def __call__(self, request: web.Request, handler: Handler) -> Awaitable[web.StreamResponse]:
        """Answer, or pass on."""
        ...


@dataclass(frozen=True, slots=True)
class Keys:
    """None: nobody is asked. Without a key of its own administration asks for the clients' one."""

    client: str | None = None
    admin: str | None = None


def is_administration(request: web.Request) -> bool:
    """Whether a request looks into the fleet or changes it."""
    path = request.path
    return path == "/workers" or path.startswith(("/workers/", "/dashboard")) or path == "/flush_cache"


def check_keys(keys: Keys) -> Middleware:
    """The middleware that refuses whoever lacks the key (401)."""

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        administration = is_administration(request)
        key = (keys.admin or keys.client) if administration else keys.client
        if key is not None and request.path not in PUBLIC_PATHS and not _given(request, key):
            which = "admin API key" if administration and keys.admin else "API key"
            return refuse(401, f"missing or wrong {which}", "authentication_error")
        return await handler(request)

    return check


def _given(request: web.Request, key: str) -> bool:
    given = request.headers.get("authorization", "")
    if secrets.compare_digest(given.encode(errors="surrogateescape"), f"Bearer {key}".encode()):
        return True
    # A browser cannot put a header on a page it opens: the dashboard takes the key in its address too.
    in_address = request.query.get("key", "") if request.path.startswith("/dashboard") else ""
    return secrets.compare_digest(in_address.encode(errors="surrogateescape"), key.encode())
