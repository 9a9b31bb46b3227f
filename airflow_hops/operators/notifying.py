"""Tells people: Airflow's notifiers, called by a task when something has been decided."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow.sdk import Context

log = logging.getLogger(__name__)

Notifier = Callable[..., Any]
"""A ``BaseNotifier`` of Airflow or a provider, or a function of the context."""


def notify(notifiers: Notifier | Sequence[Notifier], context: Context, **facts: Any) -> bool:
    """Calls notifiers; one that raises does not keep the task from going on.

    Args:
        notifiers: One, or several.
        context: The task's context.
        **facts: What their templates can name besides.

    Returns:
        Whether one was told.
    """
    informed = False
    for each in [notifiers] if callable(notifiers) else notifiers:
        try:
            # A notifier renders its templates in place: the next call must find them as they were.
            copy(each)({**context, **facts})
            informed = True
        except Exception:
            log.exception("Notifier %r failed", each)
    return informed
