"""Times in the format of records and artifacts."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The time in ISO 8601 UTC, to the millisecond."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def seconds_since(at: str) -> float:
    """Seconds from a time in ISO 8601 to now."""
    return (datetime.now(UTC) - datetime.fromisoformat(at)).total_seconds()
