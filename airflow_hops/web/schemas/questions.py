"""Questions of a validation to a person, and the answers.

Answers go to Airflow's own route (``PATCH …/hitlDetails``), which checks who may give them and records who did; here it
is said beforehand what that check will say.
"""

from __future__ import annotations

from typing import Any, Literal

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.utils.state import TaskInstanceState
from fastapi import Depends, HTTPException

from airflow_hops.web.access import is_allowed, may_change, may_read
from airflow_hops.web.types import Model, Time


class Question(Model):
    """A question that a task asked, and its answer."""

    state: Literal["waiting", "answered", "timed_out", "closed"]
    """``timed_out``: the answer is the default; ``closed``: the task ended, or was cleared, without an answer."""
    subject: str
    options: list[str]
    assigned_to: list[str]
    """Names of those who alone may answer; none, where everybody may who has the right."""
    default: str | None
    """The answer that counts if there is none until ``deadline``."""
    asked_at: Time
    deadline: Time | None
    choice: str | None
    answered_by: str | None
    answered_at: Time | None
    note: str
    may_answer: bool
    schema_changed: bool
    """Whether the frozen schema has changed since it was asked: an approval of the proposal would fail."""


def _check_may_change_or_answer(user: GetUserDep, dag_id: str) -> None:
    if not (may_change(user, dag_id) or is_allowed(user, dag_id, "PUT", DagAccessEntity.HITL_DETAIL)):
        raise HTTPException(403, "Forbidden")


CHANGES_OR_ANSWERS = Depends(_check_may_change_or_answer)
"""May start runs of the DAG, or answer what its tasks ask."""


def may_see_questions(user: GetUserDep, dag_id: str) -> bool:
    """Whether a user may see what the DAG's tasks ask."""
    return may_read(user, dag_id, DagAccessEntity.HITL_DETAIL)


def make_question(user: GetUserDep, task: Any, asked: Any, *, schema_changed: bool) -> Question:
    """The question of a task instance.

    Args:
        user: Who looks.
        task: ``dag_id``, ``state`` and ``trigger_timeout`` of the task instance.
        asked: Airflow's ``HITLDetail`` of it.
        schema_changed: See :class:`Question`.
    """
    waiting = task.state == TaskInstanceState.AWAITING_INPUT
    answered = asked.responded_at is not None
    state: Literal["waiting", "answered", "timed_out", "closed"] = "waiting" if waiting else "closed"
    assigned = {each["id"] for each in asked.assigned_users}
    if answered:
        state = "answered" if asked.responded_by else "timed_out"
    return Question(
        state=state,
        subject=asked.subject,
        options=list(asked.options),
        assigned_to=[each["name"] for each in asked.assigned_users],
        default=next(iter(asked.defaults or []), None),
        asked_at=asked.created_at,
        deadline=task.trigger_timeout if state == "waiting" else None,
        choice=next(iter(asked.chosen_options or []), None),
        answered_by=asked.responded_by["name"] or asked.responded_by["id"] if asked.responded_by else None,
        answered_at=asked.responded_at,
        note=str((asked.params_input or {}).get("note") or ""),
        may_answer=state == "waiting"
        and is_allowed(user, task.dag_id, "PUT", DagAccessEntity.HITL_DETAIL)
        and (not assigned or get_auth_manager().is_authorized_hitl_task(assigned_users=assigned, user=user)),
        schema_changed=state == "waiting" and schema_changed,
    )
