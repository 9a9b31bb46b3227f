"""Source of captured rows: the log of an endpoint, in files of any store or a Delta table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Self

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.names import check_known
from airflow_hops.core.sources.sources import AnySource, RowSource, scheme_of
from airflow_hops.core.stability import experimental

SCHEME, KSERVE = "captured", "kserve"
DELTA = "delta://"
ENDPOINT_FILE = "endpoint.json"
"""File in the model artifact of an adopted endpoint."""
SAGEMAKER = "sagemaker:"
"""Scheme of the address of an endpoint of SageMaker."""

_DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    "columns": {},
    "sagemaker": {"request_id": "eventMetadata.eventId", "captured_at": "eventMetadata.inferenceTime"},
    "databricks": {
        "request_id": "databricks_request_id",
        "captured_at": "timestamp_ms",
        "time_unit": "ms",
        "time_zone": "UTC",
        "version": "served_entity_id",
        "request": "request",
        "response": "response",
    },
    KSERVE: {
        "request_id": "id",
        "captured_at": "time",
        "version": "endpoint",
        "endpoint_field": "inferenceservicename",
    },
}  # fmt: skip
"""Defaults of the fields of a source, by layout."""
TIME_UNITS = {"s": 10**6, "ms": 10**3, "us": 1}
"""Microseconds of a unit of time."""


@experimental
@dataclass(frozen=True)
class CapturedSource(RowSource):
    """The source of captured rows in the log of an endpoint: one entry for each request, or for each row.

    Fields of an entry are named by their path in JSON, such as ``meta.id``. An ingest with a window takes the rows that
    were captured before its end and that no window has taken, each once, whatever happens to runs and files.

    Example:
        >>> from airflow_hops.extensions.captured_logs import CapturedSource
        >>> source = CapturedSource(
        ...     "s3://logs/churn/*.jsonl", model="churn", request_id="id", captured_at="time", version="model_version",
        ...     inputs={"age": "features.age", "plan": "features.plan"}, outputs={"probability": "score"},
        ... )
        >>> source.uri
        'captured://s3://logs/churn/*.jsonl'

    Attributes:
        uri: ``captured://`` before the address of the log, which need not be given: an absolute path, URI, folder or
            glob of JSON lines (also gzipped) or Parquet files, or ``delta://`` with a path or URI.
        model: Name under which the model has its record.
        layout: ``columns``, ``sagemaker`` (data capture), ``databricks`` (inference table) or ``kserve`` (CloudEvents
            of its logger, or the records that it writes to a store).
        mode: ``all``, or ``inputs`` if predictions are not captured.
        request_id: Field with the id of a request, or of a row.
        row: Field with the number of a row within its request, if entries are rows of requests.
        captured_at: Field with the time: ISO 8601 with a zone, a timestamp, or a number in ``time_unit``.
        time_unit: Unit of numbers: ``s``, ``ms`` or ``us`` since the epoch.
        time_zone: Zone of times without one: ``UTC``, as in Databricks' tables; None refuses them.
        version: Field with the version that answered.
        versions: Number of our version by the log's name for it; rows of other versions are counted and left out. None
            for a log with our numbers, or variants ``v3`` of SageMaker. Without a field ``version``, ``{"": 3}`` gives
            the version of all rows.
        endpoint: The only endpoint whose entries are read, by the name in the log; None if the log has one.
        endpoint_field: Field with the name of the endpoint or model.
        request: Field with the body of a request; None if features are fields.
        response: Field with the body of the response.
        inputs: Field by feature; or with bodies, the names of the features in the order of CSV and of lists.
        outputs: The same for predictions; ``("prediction",)`` by default.
        labels: Field by label, if the log has labels.
        lookback: Number of taken windows before the present one up to whose end an entry may be late, and through which
            one waits for its response. Copies are found as long.
        max_rejected: Share of a window's rows, 0 to 1, that may be unreadable; with more, the window fails. They are
            left out and counted. Requests that the endpoint refused, copies, and other versions are no such rows.
        schema: Types of captured columns that should not be inferred, such as ``{"input.age": "float32"}``.

    Raises:
        BadInput: a field is missing, unknown, or contradicts another.
    """

    schemes = (SCHEME,)
    planner = "airflow_hops.extensions.captured_logs.runner.plan:plan"
    committer = "airflow_hops.extensions.captured_logs.runner.plan:commit"
    reader = "airflow_hops.extensions.captured_logs.ml.ingest:copy_log"
    may_be_empty: bool = field(default=True, kw_only=True)
    model: str = field(default="", kw_only=True)
    layout: str = field(default="columns", kw_only=True)
    mode: Literal["all", "inputs"] = field(default="all", kw_only=True)
    request_id: str | None = field(default=None, kw_only=True)
    row: str | None = field(default=None, kw_only=True)
    captured_at: str | None = field(default=None, kw_only=True)
    time_unit: str | None = field(default=None, kw_only=True)
    time_zone: str | None = field(default=None, kw_only=True)
    version: str | None = field(default=None, kw_only=True)
    versions: Mapping[str, int] | None = field(default=None, kw_only=True)
    endpoint: str | None = field(default=None, kw_only=True)
    endpoint_field: str | None = field(default=None, kw_only=True)
    request: str | None = field(default=None, kw_only=True)
    response: str | None = field(default=None, kw_only=True)
    inputs: Mapping[str, str] | tuple[str, ...] = field(default=(), kw_only=True)
    outputs: Mapping[str, str] | tuple[str, ...] = field(default=("prediction",), kw_only=True)
    labels: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    lookback: int = field(default=24, kw_only=True)
    max_rejected: float = field(default=0.5, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.uri, str) and self.uri and not self.uri.startswith((f"{SCHEME}://", "{{")):
            object.__setattr__(self, "uri", f"{SCHEME}://{self.uri}")
        object.__setattr__(self, "time_column", "captured_at")
        for name in ("inputs", "outputs"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        super().__post_init__()
        where = f"source {self.uri!r}: "
        check_known(f"{where}layout", self.layout, _DEFAULTS)
        check_known(f"{where}mode", self.mode, ("all", "inputs"))
        for name, value in _DEFAULTS[self.layout].items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, value)
        if not self.model:
            raise InvalidArgument(
                "model", self.model, "; expected the name under which the model has its record", where=where
            )
        if self.time_unit is not None:
            check_known(f"{where}time_unit", self.time_unit, TIME_UNITS)
        if self.time_zone not in (None, "UTC"):
            raise InvalidArgument("time_zone", self.time_zone, "; expected 'UTC' or None", where=where)
        for name in ("request_id", "captured_at"):
            if not getattr(self, name):
                raise InvalidArgument(name, None, "; expected the name of the log's field", where=where)
        self._check_columns(where)
        for name, number in (self.versions or {}).items():
            if type(number) is not int or number < 1:
                raise InvalidArgument(f"versions[{name!r}]", number, "; expected the number of a version", where=where)
        if self.layout == "columns" and self.version is None and set(self.versions or ()) != {""}:
            raise BadInput(
                f"{where}neither 'version' names a field of the log, nor does versions={{'': 1}} give the version of "
                "all rows"
            )
        if type(self.lookback) is not int or self.lookback < 1:
            raise InvalidArgument("lookback", self.lookback, "; expected 1 or more windows", where=where)
        if type(self.max_rejected) not in (int, float) or not 0 <= self.max_rejected <= 1:
            raise InvalidArgument("max_rejected", self.max_rejected, "; expected a share from 0 to 1", where=where)

    def _check_columns(self, where: str) -> None:
        has_bodies = self.layout != "columns" or self.request is not None
        expected = "names in their order" if has_bodies else "the log's field by name"
        for name in ("inputs", "outputs"):
            value = getattr(self, name)
            is_default = name == "outputs" and (value == ("prediction",) and self.mode == "inputs")
            if (isinstance(value, Mapping) == has_bodies and not is_default) or (
                name == "inputs" and not has_bodies and not value
            ):
                raise InvalidArgument(name, value, f"; expected {expected}", where=where)
        if self.layout == "columns" and has_bodies and self.mode == "all" and self.response is None:
            raise InvalidArgument(
                "response", None, "; expected the field with the response, or mode='inputs'", where=where
            )

    @classmethod
    def from_value(cls, name: str, value: AnySource | str | Mapping[str, Any]) -> Self:
        """Returns the source for a value in a DAG; its URI begins with ``captured://``."""
        uri = value.get("uri") if isinstance(value, Mapping) else value
        if isinstance(uri, str) and scheme_of(uri) not in ("", SCHEME):
            raise BadInput(f"sources[{name!r}]: uri is {uri!r}; expected {SCHEME}://{uri}")
        return super().from_value(name, value)

    @staticmethod
    def defaults(layout: str) -> Mapping[str, Any]:
        """Returns the values that fields have by default in a layout."""
        return _DEFAULTS[layout]

    @staticmethod
    def log_fields() -> tuple[str, ...]:
        """Returns the fields whose value is a text about the log."""
        single = ("request_id", "row", "captured_at", "time_unit", "time_zone", "version", "endpoint", "endpoint_field")
        return (*single, "request", "response")

    @property
    def log(self) -> str:
        """Address of the log."""
        return self.uri.removeprefix(f"{SCHEME}://")
