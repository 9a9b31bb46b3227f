"""Types shared by the responses of this API."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.json_fields import finite
from airflow_hops.core.redaction import masked


def whole(value: float | None) -> int | None:
    """Returns a count that was stored as a metric; null if it is missing or not finite."""
    return None if value is None or not math.isfinite(value) else int(value)


def _as_utc(value: datetime) -> str:
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


Number = Annotated[float | None, BeforeValidator(finite)]
"""A number; null if there is none, or it is not finite."""
Json = Annotated[Any, BeforeValidator(finite)]
"""Any JSON value."""
Facts = Annotated[dict[str, Json], BeforeValidator(masked)]
"""Parameters or other values of the user by name, without credentials."""
Time = Annotated[
    datetime,
    PlainSerializer(_as_utc, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time, in ISO 8601 UTC."""


class Model(BaseModel):
    """Base of all response models: names are those of Python, and fields with defaults are always sent."""

    # The schema marks fields that are always sent as required, so clients need no checks.
    model_config = ConfigDict(
        frozen=True, from_attributes=True, json_schema_serialization_defaults_required=True, protected_namespaces=()
    )

    @classmethod
    def of(cls, *sources: object, **given: Any) -> Self:
        """Creates the model; a field that is not passed is the attribute of the first of ``sources`` that has it."""
        values = dict(given)
        for source in sources:
            missing = cls.model_fields.keys() - values.keys()
            values |= {name: getattr(source, name) for name in missing if hasattr(source, name)}
        return cls(**values)


class RunAddress(Model):
    """A DAG run."""

    dag_id: str
    run_id: str


class RunFacts(Model):
    """State and times of a DAG run."""

    run_id: str
    state: str
    run_type: str
    run_after: Time
    started_at: Time | None
    ended_at: Time | None

    @classmethod
    def of_run(cls, run: Any, **given: Any) -> Self:
        """Creates the model of Airflow's ``DagRun``."""
        return cls.of(run, started_at=run.start_date, ended_at=run.end_date, **given)


class TaskAddress(RunAddress):
    """A task instance."""

    task_id: str
    map_index: int
    """-1 for tasks that are not mapped."""
    iteration: int = -1
    """Iteration of the loop that the task is in; -1 outside a loop."""

    @property
    def producer(self) -> Producer:
        """The task instance as producer of artifacts, as of its first try."""
        return Producer(self.dag_id, self.run_id, self.task_id, self.map_index, iteration=self.iteration)


class Problem(Model):
    """The reason why a request failed, for the user."""

    detail: str


Entry = TypeVar("Entry")


class Page(Model, Generic[Entry]):
    """Part of a list; ``total_entries`` counts the whole list, as in Airflow's API."""

    total_entries: int
    entries: list[Entry]
    problems: list[str] = []
    """Errors of entries that are missing or incomplete."""


Limit = Annotated[int, Field(ge=1, le=1000, description="Maximum number of entries")]
Offset = Annotated[int, Field(ge=0, lt=2**31, description="Number of entries to skip")]
