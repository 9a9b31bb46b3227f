"""Window of a retraining request in the run that it triggers; macros for templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from airflow_hops.core.artifacts.properties import Window
from airflow_hops.core.errors import BadInput
from airflow_hops.core.times import as_utc

_TEXTS = ("cause", "model_name", "window_start", "window_end")


def extras(triggering_asset_events: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the extras of the events in the template variable ``triggering_asset_events``.

    Raises:
        BadInput: an extra of anybody's event has another type where a request has texts.
    """
    for event in (event for events in (triggering_asset_events or {}).values() for event in events):
        extra = event.extra or {}
        for name in _TEXTS:
            if not isinstance(extra.get(name), str | None):
                raise BadInput(
                    f"the asset event's {name} is {extra[name]!r}, expected a text or null; correct its sender"
                )
        yield extra


def requested_window(triggering_asset_events: object) -> Window:
    """Returns the window of the request with the latest ``window_end``; None means the pipeline's own bound.

    A request without ``window_end``, since its data has no time of its own, counts as the latest.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    windows = [(extra.get("window_start"), extra.get("window_end")) for extra in extras(triggering_asset_events)]
    return max((window for window in windows if any(window)), default=(None, None), key=_order)


def window_start(triggering_asset_events: object, default: str | None = None) -> str | None:
    """Start of the requested window: ``{{ macros.hops.window_start(triggering_asset_events, params.start) }}``.

    Args:
        triggering_asset_events: The template variable of this name.
        default: The start if no request has one.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    return requested_window(triggering_asset_events)[0] or default


def window_end(triggering_asset_events: object, default: str | None = None) -> str | None:
    """Returns the end of the requested window, as :func:`window_start`.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    return requested_window(triggering_asset_events)[1] or default


def _order(window: Window) -> tuple[datetime, datetime]:
    """Returns the end and the start of a window, by which requests are ordered."""
    start, end = window
    return (
        _time("window_end", end) if end else datetime.max.replace(tzinfo=UTC),
        _time("window_start", start) if start else datetime.min.replace(tzinfo=UTC),
    )


def _time(bound: str, text: str) -> datetime:
    try:
        return as_utc(text)
    except (TypeError, ValueError) as error:
        raise BadInput(f"the asset event's {bound} is {text!r}, expected a time in ISO 8601") from error
