"""How a metrics page is asked for."""

import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Final

from tidegate_proxy.app.top.page import NotTidegate, Page, page_of

_WITHIN_S: Final = 5.0
_FORBIDDEN: Final = (401, 403)


class Unreadable(Exception):
    """There is no page, in words with the remedy."""


def read(address: str, headers: Mapping[str, str]) -> Page:
    """The page at HOST:PORT, or at a URL. Raises Unreadable."""
    url = address if "://" in address else f"http://{address}/metrics"
    request = urllib.request.Request(url, headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=_WITHIN_S) as answer:
            text = answer.read().decode()
        return page_of(text, time.monotonic())
    except urllib.error.HTTPError as error:
        if error.code in _FORBIDDEN:
            why = "it wants to know who asks: give --token-file FILE"
        else:
            why = f"it answers with {error.code} {error.reason}: is this the port of the metrics page (listen.metrics)?"
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        why = f"does a Tidegate run, and is this the port of its metrics page (listen.metrics)? ({reason})"
    except NotTidegate as error:
        why = str(error)
    raise Unreadable(f"{url}: {why}")
