"""Times in the format of records and artifacts."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """Returns the current time in ISO 8601 UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(at: str) -> float:
    """Returns the seconds from a time in ISO 8601 to now."""
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()


def sortable(at: str) -> str:
    """Returns a time in ISO 8601 as a file name in UTC; names sort by time."""
    time = datetime.fromisoformat(at)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
