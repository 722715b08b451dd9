"""The page and the numbers behind it."""

from importlib import resources
from typing import Any

from aiohttp import web

from sglang_dualpath.router.core.core import SchedulingCore
from sglang_dualpath.router.dashboard.history import History

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; connect-src 'self'; img-src data:"
)


class Dashboard:
    """`/dashboard`, one page without outside assets, and `/dashboard/state`, which it asks once a second."""

    def __init__(self, core: SchedulingCore, policy: str) -> None:
        self._core = core
        self._history = History(core)
        self._policy = policy
        self._page = resources.files(__package__).joinpath("page.html").read_text()

    def routes(self) -> list[web.RouteDef]:
        """Where both are served."""
        return [web.get("/dashboard", self.page), web.get("/dashboard/state", self.state)]

    async def run(self) -> None:
        """Note what happens, once a second, until cancelled."""
        await self._history.run()

    def sample(self, now_s: float) -> None:
        """Note what has happened up to now."""
        self._history.sample(now_s)

    async def page(self, request: web.Request) -> web.Response:
        """The page."""
        headers = {"content-security-policy": CONTENT_SECURITY_POLICY, "cache-control": "no-store"}
        return web.Response(text=self._page, content_type="text/html", headers=headers)

    async def state(self, request: web.Request) -> web.Response:
        """Its numbers."""
        cluster = self._core.scheduler.cluster
        state: dict[str, Any] = {
            "policy": self._policy,
            "ready": bool(cluster.prefill and cluster.decode),
            **self._history.describe(),
        }
        return web.json_response(state)
