"""Types that the responses of this API share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainSerializer, WithJsonSchema

from airflow_hops.core.contract.redaction import masked


def finite(value: Any) -> Any:
    """The same JSON value with null for every number that JSON cannot say (NaN, infinities)."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def whole(value: float | None) -> int | None:
    """A count that went through a metric; null where there is none, or it is no number."""
    return None if value is None or not math.isfinite(value) else int(value)


def _as_utc(value: datetime) -> str:
    if value.tzinfo is None:
        value = value.replace(tzinfo=UTC)
    return value.astimezone(UTC).isoformat().replace("+00:00", "Z")


Number = Annotated[float | None, BeforeValidator(finite)]
"""A number; null where there is none, or none that JSON can say."""
Json = Annotated[Any, BeforeValidator(finite)]
"""Any JSON value."""
Facts = Annotated[dict[str, Json], BeforeValidator(masked)]
"""Parameters, or what else a user gave, by name: without credentials."""
Time = Annotated[
    datetime,
    PlainSerializer(_as_utc, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time"}),
]
"""A time, in ISO 8601 UTC."""


class Model(BaseModel):
    """Base of all response models: names as in Python, fields that have defaults are always sent."""

    # The schema says "required" of what is always there, so that clients need not ask.
    model_config = ConfigDict(
        frozen=True, from_attributes=True, json_schema_serialization_defaults_required=True, protected_namespaces=()
    )

    @classmethod
    def of(cls, source: object, **given: Any) -> Self:
        """Takes the fields that are not given from attributes of the same names, where there are such."""
        names = [name for name in cls.model_fields if name not in given and hasattr(source, name)]
        return cls(**{name: getattr(source, name) for name in names}, **given)


class RunAddress(Model):
    """A DAG run."""

    dag_id: str
    run_id: str


class TaskAddress(RunAddress):
    """A task instance."""

    task_id: str
    map_index: int


class Problem(Model):
    """Why a request failed, in words for the user."""

    detail: str


class Page(Model):
    """Part of a list: ``total_entries`` is how many there are in all, as in Airflow's own API."""

    total_entries: int


Limit = Annotated[int, Field(ge=1, le=1000, description="Maximum number of entries")]
Offset = Annotated[int, Field(ge=0, lt=2**31, description="Number of entries to skip")]
