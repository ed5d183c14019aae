"""Which application a request is of, where the configuration says what tells it: a parameter, or a header."""

import time
from typing import Final

from tidegate_proxy.configuration.clients import AppConfig
from tidegate_proxy.heading import Heading
from tidegate_proxy.labels import FrequentLabels, digest, label, may_be_secret
from tidegate_proxy.transport import Metadata

MOST: Final = 100
"""Applications that are kept apart at a time."""


class Applications:
    """Names the application of every request."""

    def __init__(self, config: AppConfig) -> None:
        self.parameter = config.parameter or ""
        """The parameter that tells it; "": none does."""
        self._header = config.header or ""
        self._is_secret = may_be_secret(self._header)
        self._labels = FrequentLabels(MOST)

    def of(self, heading: Heading, metadata: Metadata) -> str:
        """The application of a request with this heading and metadata, or headers; "": it does not say.

        Beyond `MOST`, those that come least often are one, called `other`.
        """
        said = heading.app if self.parameter else self._in(metadata) if self._header else ""
        return self._labels.of(said, time.monotonic()) if said else ""

    def _in(self, metadata: Metadata) -> str:
        for name, value in metadata:
            if name == self._header:
                text = value.decode("latin1") if isinstance(value, bytes) else value
                return digest(text) if self._is_secret else label(text)
        return ""
