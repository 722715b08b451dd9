"""The page in a real browser: it fills itself with what the router tells."""

import asyncio
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from test.unit.router.running_router import RunningRouter, posted, routed_pair

pytestmark = pytest.mark.asyncio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--virtual-time-budget=5000",
)  # fmt: skip


async def rendered(router: RunningRouter, directory: Path, path: str = "/dashboard") -> str:
    """The page's document after it has run for a while."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *FLAGS, f"--user-data-dir={directory}", "--dump-dom", router.url + path]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout


def cell(document: str, title: str) -> str:
    """The figure under a title."""
    found = re.search(rf"<h2>{re.escape(title)}</h2><div class=\"figure\">([^<]*)</div>", document)
    assert found is not None, f"no figure {title}"
    return found[1]


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")
async def test_the_page_shows_engines_figures_and_charts(tmp_path: Path) -> None:
    async with routed_pair() as (router, prefill, decode):
        router.report(prefill, tok=500, beta_tokens=1000, read_bytes=10**6)
        router.report(decode, prompt_tokens=1000, hit_tokens=900)
        for _ in range(3):
            assert (await posted(router, text="a"))[0] == 200
        # A browser's virtual time passes faster than the samples come.
        for second in range(1, 4):
            router.service.dashboard.sample(time.monotonic() + second)
        document = await rendered(router, tmp_path)
        assert prefill.url in document
        assert decode.url in document
        assert "serving" in document
        assert "policy dualpath" in document
        assert cell(document, "Finished") == "3"
        assert cell(document, "In flight") == "0"
        assert document.count("<tr>") >= 3
        assert document.count("<path") >= 1


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here; apt-get install chromium")
async def test_with_a_key_the_page_asks_with_the_one_in_its_address(tmp_path: Path) -> None:
    async with routed_pair("--admin-api-key", "secret") as (router, prefill, _decode):
        assert "missing or wrong admin API key" in await rendered(router, tmp_path / "a")
        assert prefill.url in await rendered(router, tmp_path / "b", "/dashboard?key=secret")


async def test_the_page_loads_nothing_from_elsewhere() -> None:
    async with routed_pair() as (router, _prefill, _decode), router.client.get(router.url + "/dashboard") as response:
        page = await response.text()
        assert response.status == 200
        assert "default-src 'none'" in response.headers["content-security-policy"]
    assert not re.findall(r"(?:src|href)=\"(?!data:)", page)
    assert "http://" not in page.replace("http://www.w3.org/2000/svg", "")
