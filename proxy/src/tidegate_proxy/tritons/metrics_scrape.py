"""Scraper of the Tritons' metrics pages."""

import asyncio
from collections.abc import Mapping

import aiohttp


async def scrape(addresses: Mapping[str, str], timeout_s: float = 2.0) -> dict[str, str | None]:
    """Return the metrics pages of Tritons, scraped concurrently: by name, None for one that did not answer in time.

    `addresses`: name of a Triton (its gRPC address, as its workers are called) -> host:port of its metrics.
    """
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    async with aiohttp.ClientSession(timeout=timeout, raise_for_status=True) as session:
        pages = await asyncio.gather(*(_page(session, address) for address in addresses.values()))
    return dict(zip(addresses, pages, strict=True))


async def _page(session: aiohttp.ClientSession, address: str) -> str | None:
    try:
        async with session.get(f"http://{address}/metrics") as response:
            return await response.text(errors="replace")
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None
