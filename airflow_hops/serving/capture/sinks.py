"""Sinks of captured rows besides files: entry points of the group ``airflow_hops.capture_sinks``, by scheme of URL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence

from airflow_hops.core.errors import BadInput
from airflow_hops.core.extensions import CAPTURE_SINKS, load_class
from airflow_hops.serving.capture.batch import BatchFile


class CaptureSink(ABC):
    """A place that gets every captured row, in the process that writes the spool.

    It gets the rows in batches. A batch that fails is sent again, after a pause, until it succeeds; so is a batch whose
    writer is killed before it has recorded the success. Rows of such a batch have the same ``request_id`` and ``row``.

    Args:
        url: Value of ``--capture_sink``. It is not secret: ``GET /v1/capture`` shows it.
        sender: Name of the spool. A later sender of that name replaces this one, which was killed.

    Raises:
        OSError, ValueError: The URL is not valid, or a file that it names. The server checks this when it starts, so
            this must neither connect nor wait.
    """

    def __init__(self, url: str, sender: str) -> None:
        self.url, self.sender = url, sender

    @abstractmethod
    def send(self, parts: Sequence[BatchFile]) -> Counter[str]:
        """Stores the rows of parts durably, all or none of them, without waiting for more than a minute.

        Returns:
            Number of rows by model that can never be stored, such as too large ones.

        Raises:
            OSError: They are not stored, and can be sent again.
        """

    def close(self) -> None:
        """Ends the connection; called once, after the last batch."""
        return None


def open_sink(url: str, sender: str) -> CaptureSink:
    """Opens a sink by its URL.

    Raises:
        OSError, ValueError: The sink refuses the URL, or no installed distribution registers its scheme.
    """
    scheme, separator, _ = url.partition("://")
    if not separator:
        raise ValueError(f"{url!r} is not a URL")
    try:
        kind = load_class(CAPTURE_SINKS, scheme, CaptureSink)  # type: ignore[type-abstract]
    except BadInput as error:
        raise ValueError(str(error)) from error
    return kind(url, sender)
