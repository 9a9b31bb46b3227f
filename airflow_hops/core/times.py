"""Times in the format of records and artifacts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_hops.core.errors import InvalidArgument

_DATE_DIGITS = len("20130101")


def parse_time(text: str) -> datetime:
    """Parses a time in ISO 8601.

    Raises:
        ValueError: it is not one. Python also takes 1712102400000, which are milliseconds, for a day of the year 1712.
    """
    if text.isdigit() and len(text) > _DATE_DIGITS:
        raise ValueError(f"{text} is a number; expected a time in ISO 8601, like 2013-01-01T00:00:00Z")
    return datetime.fromisoformat(text)


def as_utc(text: str) -> datetime:
    """Parses a time in ISO 8601; UTC if it has no zone."""
    time = parse_time(text)
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


def now() -> str:
    """Returns the current time in ISO 8601 UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(at: str) -> float:
    """Returns the seconds from a time in ISO 8601 to now."""
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()


def sortable(at: str) -> str:
    """Returns a time in ISO 8601 as a file name in UTC; names sort by time."""
    return as_utc(at).strftime("%Y%m%dT%H%M%S.%fZ")


def in_seconds(value: object) -> Any:
    """Returns a length of time in seconds, in a list each; other values as they are."""
    if isinstance(value, list | tuple):
        return [in_seconds(each) for each in value]
    return value.total_seconds() if isinstance(value, timedelta) else value


def window_time(argument: str, text: str | None) -> datetime | None:
    """Returns a bound of a window in UTC, which is the zone of a text without one; None for no bound.

    Raises:
        BadInput: the argument is not a time in ISO 8601.
    """
    if text is None or text in ("", "None"):  # as templates render missing values
        return None
    try:
        return as_utc(text)
    except ValueError:
        raise InvalidArgument(argument, text, ", expected a time in ISO 8601, like 2013-01-01T00:00:00Z") from None
