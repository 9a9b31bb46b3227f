"""The message of a retraining request to the run that it triggers; macros of templates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.properties import Window
from airflow_hops.core.contract.retraining.situation import as_utc


def extras(triggering_asset_events: Any) -> Iterator[Mapping[str, Any]]:
    """The extras of the asset events that triggered a DAG run.

    Args:
        triggering_asset_events: The template variable of this name; None for no events.
    """
    return (event.extra or {} for events in (triggering_asset_events or {}).values() for event in events)


def requested_window(triggering_asset_events: Any) -> Window:
    """The window of the request with the latest ``window_end``; None for what it leaves to the pipeline.

    Args:
        triggering_asset_events: As :func:`extras`.

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
        triggering_asset_events: As :func:`extras`.
        default: The start where no request says one.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    return requested_window(triggering_asset_events)[0] or default


def window_end(triggering_asset_events: Any, default: str | None = None) -> str | None:
    """End of the requested window, as :func:`window_start`.

    Args:
        triggering_asset_events: As :func:`extras`.
        default: The end where no request says one.

    Raises:
        BadInput: a time is not in ISO 8601.
    """
    return requested_window(triggering_asset_events)[1] or default


def _time(text: str) -> datetime:
    try:
        return as_utc(text)
    except ValueError as error:
        raise BadInput(f"the asset event's window_end is {text!r}, expected a time in ISO 8601") from error
