"""Step protocol: communication between the Airflow side and a step's process.

Only the standard library is imported, since both sides use this module. The Airflow side writes ``spec.json`` and
starts ``python -m airflow_hops.ml spec.json`` in a separate process group. Values of connections, which may contain
credentials, are not in a file, but in an environment variable that the step removes first. The step writes lines to its
standard output, plain text or *records* (a JSON object after the ASCII record separator, as in RFC 7464), and finally
``result.json``. An exit without a result file is a failure.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, Cause
from airflow_hops.core.json_fields import JsonFields
from airflow_hops.core.redaction import redacted, secrets_in

RECORD_SEPARATOR = "\x1e"
_ABSL_LINE = re.compile(r"[IWE]\d{4} [\d:.]+ +\d+ \S+:\d+\] |WARNING: All log messages before absl::InitializeLog")
STEP_ID_VARIABLE = "HOPS_STEP_ID"
"""Environment variable that every process of a step inherits, so that a kill finds all of them."""

CONNECTIONS_VARIABLE = "HOPS_STEP_CONNECTIONS"
"""Environment variable with the fields of a step's spec that come from connections, as JSON."""

_OF_CONNECTIONS = ("storage_options", "source_options", "services")

NOTEBOOK_VARIABLE = "HOPS_NOTEBOOK"
"""Environment variable with the path of the spec of a kernel's step."""

WORKER_VARIABLE = "HOPS_WORKER"
"""Environment variable with the identity of the process that started a step on the same machine."""


@dataclass(frozen=True)
class Output:
    """The destination of a step's artifact: address in the store, and kind."""

    uri: str
    kind: str


@dataclass(frozen=True)
class StepSpec:
    """The specification of a step.

    Attributes:
        step: Name for people: the stage or the task.
        entry: ``module:function`` of the ML side, called as ``function(context, **params)``.
        params: Keyword arguments of the entry; JSON values.
        inputs: Upstream artifacts by role (``examples``, ``schema``); a role may hold several.
        output: Destination of the artifact; None for a step that returns a plain value.
        store: Root URI of the artifact store.
        storage_options: fsspec options of the store.
        source_options: Options of sources, by the id of the connection that has them.
        code_paths: Folders added to the step's import path (the DAG bundle's).
        cache_key_parts: Recorded in the manifest.
        services: Services that do not affect the result: ``tracking_uri`` of MLflow, the model server's ``serving_*``,
            and, as JSON under ``ranks``, the place of a training's ranks.
        secrets: Paths of the parameters that are secrets, such as ``env/API_TOKEN``.

    Raises:
        BadInput: a parameter is not a JSON value.
    """

    step: str
    entry: str
    params: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, tuple[Artifact, ...]] = field(default_factory=dict)
    output: Output | None = None
    store: str = ""
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    source_options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    producer: Producer = field(default_factory=Producer)
    code_paths: tuple[str, ...] = ()
    cache_key_parts: Mapping[str, str] = field(default_factory=dict)
    services: Mapping[str, str] = field(default_factory=dict, repr=False)
    secrets: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Checked here, since a spec is hashed for the cache before it is written.
        check_json(self.params, f"step {self.step!r}: params")

    def to_json(self) -> str:
        """Returns the text of ``spec.json``: everything except :meth:`variables`."""
        value = {name: item for name, item in asdict(self).items() if name not in _OF_CONNECTIONS}
        return json.dumps(value, indent=1)

    def secret_values(self) -> Iterator[str]:
        """Yields the texts that must not appear in the step's output; credentials in URIs are masked separately."""
        whole = tuple(f"{path}/" for path in self.secrets)
        yield from (text for path, text in texts_in(self.params) if f"{path}/".startswith(whole) and "://" not in text)
        yield from secrets_in({**self.storage_options, **self.services, **self.source_options})

    def variables(self) -> dict[str, str]:
        """Returns values of connections as an environment variable of the step, so that they are not in any file."""
        return {CONNECTIONS_VARIABLE: json.dumps({name: dict(getattr(self, name)) for name in _OF_CONNECTIONS})}

    @classmethod
    def from_json(cls, text: str, variables: MutableMapping[str, str] | None = None) -> StepSpec:
        """Reads the text of :meth:`to_json` and the environment with :meth:`variables`.

        The variable is removed from the environment, so that child processes do not inherit it.
        """
        value = json.loads(text) | json.loads((variables or {}).pop(CONNECTIONS_VARIABLE, "{}"))
        return cls(
            **{
                **value,
                "inputs": {n: tuple(Artifact.from_dict(a) for a in refs) for n, refs in value["inputs"].items()},
                "output": Output(**value["output"]) if value["output"] else None,
                "producer": Producer(**value["producer"]),
                "code_paths": tuple(value["code_paths"]),
                "secrets": tuple(value.get("secrets", ())),
            }
        )


def texts_in(value: object, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the texts in a JSON value with their paths."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, Mapping | list | tuple):
        for name, item in value.items() if isinstance(value, Mapping) else enumerate(value):
            yield from texts_in(item, f"{path}/{name}".removeprefix("/"))


@dataclass(frozen=True)
class Phase(JsonFields):
    """A part of a step's time that was measured on its own, such as that of a rank or a pod: a span of its trace.

    Attributes:
        name: Kind of the part.
        began_at: Its begin in seconds since 1970, by the clock of its own machine.
        ended_at: Its end, likewise.
        attributes: Attributes of the span: text and numbers.
        events: Times of what happened in it, by name.
    """

    name: str
    began_at: float
    ended_at: float
    attributes: Mapping[str, str | float] = field(default_factory=dict)
    events: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResult(JsonFields):
    """The outcome of a step: a value (an artifact as its dict) or an error.

    A job outlives the worker that started it, so another version of this package may read its result.

    Attributes:
        value: JSON value; for a step with an output, the artifact's dict.
        is_artifact: Whether ``value`` is an artifact.
        error: Message of the error.
        retryable: Whether a retry of the same input may succeed.
        cause: Cause of the error, if it is neither in the input nor in the code.
        kind: Class of the error (:func:`~airflow_hops.core.errors.kind_of`).
        details: Attributes of the error (:func:`~airflow_hops.core.errors.details_of`).
        seconds: Wall-clock seconds by phase: ``start_up`` (interpreter, imports, the JVM) and ``work``.
        ended_at: End of the work, in seconds since 1970.
        phases: Parts of the step that were measured on their own.
    """

    value: Any = None
    is_artifact: bool = False
    error: str | None = None
    retryable: bool = True
    cause: Cause | None = None
    kind: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    ended_at: float | None = None
    phases: tuple[Phase, ...] = ()

    def write(self, path: Path) -> None:
        """Writes the result file atomically."""
        staging = path.with_suffix(".staging")
        staging.write_text(json.dumps(self.to_dict()))
        staging.replace(path)

    @classmethod
    def read(cls, path: Path) -> StepResult | None:
        """Returns the result in the file, or None if the step died before it wrote one."""
        try:
            return cls.from_dict(json.loads(path.read_text()))
        except FileNotFoundError:
            return None


@dataclass(frozen=True)
class Line:
    """A line of a step's output.

    Attributes:
        level: A :mod:`logging` level; plain lines are INFO.
        text: The message.
        progress: Completed share of the step, 0 to 1, or None for a log line.
        metrics: Metrics reported with the line (loss, accuracy), by name.
    """

    level: int
    text: str
    progress: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


def check_json(value: object, what: str) -> None:
    """Raises BadInput if a part of a value is not a JSON value; ``what`` is the value's name for the message."""
    if value is None or isinstance(value, str | bool | int | float):
        return
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            check_json(item, f"{what}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise BadInput(f"{what} has the key {key!r} of type {type(key).__name__}; expected text, as in JSON")
            check_json(item, f"{what}[{key!r}]")
    else:
        kind = type(value)
        raise BadInput(
            f"{what} is a {kind.__module__}.{kind.__qualname__}; expected a JSON value (text, number, true or false, "
            "None, a list or a dict of them)"
        )


def json_object(value: Any, what: str) -> dict[str, Any]:
    """Returns the JSON object in a field of a connection, which is text or an object; empty for an empty field.

    Raises:
        BadInput: the field is not a JSON object; the message does not show it, since it may contain credentials.
    """
    result = f"a {type(value).__name__}"
    if isinstance(value, str) and value.strip():
        try:
            value = json.loads(value)
            result = f"a {type(value).__name__}"
        except ValueError as error:
            result = f"text that is not JSON: {error}"
    if value and not isinstance(value, Mapping):
        raise BadInput(f"{what}: expected a JSON object, found {result} (not shown, since it may hold credentials)")
    return dict(value or {})


def format_record(
    text: str, *, level: int = logging.INFO, progress: float | None = None, metrics: Mapping[str, float] | None = None
) -> str:
    """Returns a line of output with its level and, if passed, progress and metrics."""
    record: dict[str, Any] = {"level": logging.getLevelName(level), "text": text}
    if progress is not None:
        record["progress"] = progress
    if metrics:
        record["metrics"] = dict(metrics)
    return RECORD_SEPARATOR + json.dumps(record)


def parse_line(line: str) -> Line:
    """Reads a line of a step's output without credentials; text that is not a record is a plain line at INFO.

    Lines of Google's C++ libraries are at DEBUG: TensorFlow 2.21 prints alarming but harmless ones at every import.
    """
    line = line.rstrip("\n")
    if line.startswith(RECORD_SEPARATOR):
        try:
            record = json.loads(line[1:])
            level = logging.getLevelNamesMapping().get(record["level"], logging.INFO)
            return Line(level, redacted(record["text"]), record.get("progress"), record.get("metrics") or {})
        except (ValueError, KeyError, TypeError, AttributeError):
            pass
    return Line(logging.DEBUG if _ABSL_LINE.match(line) else logging.INFO, redacted(line))


def is_local_master(master: str) -> bool:
    """Returns whether a Spark master is the step's own machine: ``local``, ``local[2]``, ``local[*]``."""
    return master == "local" or master.startswith("local[")
