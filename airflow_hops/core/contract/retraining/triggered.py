"""Window of a retraining request in the run that it triggers; macros for templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.properties import Window
from airflow_hops.core.contract.retraining.situation import as_utc


def extras(triggering_asset_events: Any) -> Iterator[Mapping[str, Any]]:
    """Yields the extras of the events in the template variable ``triggering_asset_events``."""
    return (event.extra or {} for events in (triggering_asset_events or {}).values() for event in events)


def requested_window(triggering_asset_events: Any) -> Window:
    """Returns the window of the request with the latest ``window_end``; None means the pipeline's own bound.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    windows = [
        (extra.get("window_start"), str(extra["window_end"]))
        for extra in extras(triggering_asset_events)
        if extra.get("window_end")
    ]
    return max(windows, default=(None, None), key=lambda window: _time(window[1]))


def window_start(triggering_asset_events: Any, default: str | None = None) -> str | None:
    """Start of the requested window: ``{{ macros.hops.window_start(triggering_asset_events, params.start) }}``.

    Args:
        triggering_asset_events: The template variable of this name.
        default: The start if no request has one.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    return requested_window(triggering_asset_events)[0] or default


def window_end(triggering_asset_events: Any, default: str | None = None) -> str | None:
    """Returns the end of the requested window, as :func:`window_start`.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    return requested_window(triggering_asset_events)[1] or default


def _time(text: str) -> datetime:
    try:
        return as_utc(text)
    except ValueError as error:
        raise BadInput(f"the asset event's window_end is {text!r}, expected a time in ISO 8601") from error
