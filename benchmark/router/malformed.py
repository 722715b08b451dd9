"""Malformed requests, made from an OpenAPI document."""

import json
import random
from typing import Any

import aiohttp

METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "HEAD")
SLOW_PATHS = ("/flush_cache",)
"""Left out: they ask all engines each time."""


class Malformed:
    """A seeded source."""

    def __init__(self, document: dict[str, Any], seed: int) -> None:
        self._random = random.Random(seed)
        self._bodies = [
            (path, operation["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"])
            for path, operation in document["paths"].items()
            if "requestBody" in operation.get("post", {})
        ]
        self._paths = [path for path in document["paths"] if path not in SLOW_PATHS]

    async def send(self, session: aiohttp.ClientSession, url: str) -> int:
        """Send one; its status, 0 for a connection that the router closed."""
        path, properties = self._random.choice(self._bodies)
        data = self._data(properties)
        method = "POST"
        if self._random.random() < 0.1:
            method, path = self._random.choice(METHODS), self._random.choice(self._paths)
        headers = self._headers()
        try:
            async with session.request(
                method, url + path.replace("{id}", self._word()), data=data, headers=headers
            ) as response:
                await response.read()
                return response.status
        except (aiohttp.ClientError, ValueError):
            return 0

    def _headers(self) -> dict[str, str]:
        headers = {
            "content-type": self._random.choice(["application/json", "text/plain", "application/json; charset=x"])
        }
        if self._random.random() < 0.1:
            headers[self._random.choice(["x-request-id", "traceparent", "authorization"])] = self._word()
        return headers

    def _data(self, properties: dict[str, Any]) -> bytes:
        names = self._random.sample(sorted(properties), self._random.randint(0, len(properties)))
        body = {name: self._near(properties[name]) for name in names}
        if self._random.random() < 0.2:
            body[self._word()] = self._junk(3)
        data = json.dumps(body).encode()
        change = self._random.random()
        if change < 0.1:
            return data[: self._random.randint(0, len(data))]
        if change < 0.2:
            at = self._random.randint(0, len(data))
            return data[:at] + self._random.randbytes(self._random.randint(1, 4)) + data[at:]
        if change < 0.25:
            return json.dumps(self._junk(4)).encode()
        return data

    def _near(self, schema: dict[str, Any]) -> Any:
        """A value of the schema, or of any other kind."""
        if self._random.random() < 0.4:
            return self._junk(3)
        if "oneOf" in schema:
            return self._near(self._random.choice(schema["oneOf"]))
        kind = schema.get("type")
        if kind == "array":
            return [self._near(schema["items"]) for _ in range(self._random.randint(0, 4))]
        if kind == "object":
            return {name: self._near(part) for name, part in schema.get("properties", {}).items()}
        return {
            "string": self._word(),
            "integer": self._random.choice([0, 1, -1, 2**31, 2**63, 10**30]),
            "number": self._random.choice([0.0, -1.5, 1e308]),
            "boolean": self._random.random() < 0.5,
        }.get(str(kind), self._junk(2))

    def _junk(self, depth: int) -> Any:
        simple = [None, True, False, 0, -1, 2**64, 1e300, "", self._word(), "\ud83d", "\0", "x" * 5000]
        if depth == 0 or self._random.random() < 0.6:
            return self._random.choice(simple)
        if self._random.random() < 0.5:
            return [self._junk(depth - 1) for _ in range(self._random.randint(0, 4))]
        return {self._word(): self._junk(depth - 1) for _ in range(self._random.randint(0, 4))}

    def _word(self) -> str:
        return "".join(self._random.choice("abc_-./%{}é\u2028") for _ in range(self._random.randint(1, 8)))
