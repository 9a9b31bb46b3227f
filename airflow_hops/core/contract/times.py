"""Times in the format of records and artifacts."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The time in ISO 8601 UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(at: str) -> float:
    """Seconds from a time in ISO 8601 to now."""
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()


def sortable(at: str) -> str:
    """A time in ISO 8601 as the name of a file, in UTC: the order of the names is that of the times."""
    time = datetime.fromisoformat(at)
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
