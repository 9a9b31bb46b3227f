"""Notifies people with Airflow's notifiers, and asks them for decisions."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Param

from airflow_hops.airflow_internals.tasks import AirflowFailException, TaskAwaitingInput, upsert_hitl_detail

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.airflow_internals.tasks import HITLUser

log = logging.getLogger(__name__)

Notifier = Callable[..., Any]
"""A ``BaseNotifier`` of Airflow or a provider, or a function of the context."""


def notify(notifiers: Notifier | Sequence[Notifier], context: Context, **facts: Any) -> bool:
    """Calls notifiers with the context and ``facts``; failures are logged. Returns whether at least one succeeded."""
    informed = False
    for each in [notifiers] if callable(notifiers) else notifiers:
        try:
            # A notifier renders its templates in place, so each call uses a copy.
            copy(each)({**context, **facts})
            informed = True
        except Exception:
            log.exception("Notifier %r failed", each)
    return informed


def ask(
    context: Context,
    subject: str,
    body: str,
    options: Sequence[str],
    *,
    default: str | None,
    timeout: timedelta | None,
    note: str,
    assigned_users: Sequence[HITLUser] | None = None,
    **kwargs: Any,
) -> NoReturn:
    """Asks a person, and ends the try; Airflow passes the answer to the operator's ``execute_complete``.

    Args:
        context: The task's context.
        subject: The question.
        body: Background of the question, in Markdown.
        options: The answers to choose from.
        default: The answer if none arrives in time; None waits without end.
        timeout: How long to wait.
        note: Description of the field for the person's remarks.
        assigned_users: Users who may answer; None for everyone who may answer for the DAG.
        **kwargs: Other arguments of ``execute_complete``.
    """
    upsert_hitl_detail(
        ti_id=context["ti"].id,
        subject=subject,
        body=body,
        options=list(options),
        defaults=None if default is None or timeout is None else [default],
        params={"note": Param("", description=note, type=["string", "null"]).serialize()},
        assigned_users=list(assigned_users or []),
    )
    log.info("Question asked: %s", body)
    raise TaskAwaitingInput(method_name="execute_complete", kwargs=kwargs, timeout=timeout)


@dataclass(frozen=True)
class PersonAnswer:
    """A person's answer.

    Attributes:
        by: The person's name, or a note about the timeout.
        at: Time of the answer, ISO 8601.
    """

    choice: str
    by: str
    note: str
    at: str

    @classmethod
    def of(cls, event: Mapping[str, Any], timeout: timedelta | None) -> PersonAnswer:
        """Reads the event that Airflow passes to ``execute_complete``.

        Raises:
            AirflowFailException: the question could not be answered.
        """
        if "error" in event:
            raise AirflowFailException(f"the question could not be answered: {event['error']}")
        (choice,), user = event["chosen_options"], event.get("responded_by_user")
        by = user["name"] or user["id"] if user else f"no answer within {timeout}"
        note = str((event.get("params_input") or {}).get("note") or "").strip()
        log.info("Answer: %r by %s%s", choice, by, f": {note}" * bool(note))
        return cls(choice, by, note, str(event.get("responded_at")))
