"""``airflow hops adopt``: makes a model of ours of an endpoint that runs already."""

from __future__ import annotations

import json
import keyword
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.cli.terminal import print_warning
from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import ModelProperties
from airflow_hops.core.errors import BadInput, InvalidArgument, StepFailed
from airflow_hops.core.models.model_record import ModelRecord, find_record, read_record
from airflow_hops.core.processes.files import staged
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.times import now, sortable
from airflow_hops.extensions.captured_logs.core.source import ENDPOINT_FILE, SAGEMAKER, CapturedSource
from airflow_hops.runner.runtime import RuntimeHook

_STEPS = "airflow_hops.extensions.captured_logs.ml.adopt"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_PERIODS_S = {"@hourly": 3600, "@daily": 86_400}
_WIDEST = 30
_SHOWN = 60
_TEMPLATE = re.compile(r"\{[{%#]")
_DAG = '''"""Watches an adopted model by the requests in its log.

Written by ``airflow hops adopt``; change it as you like.
"""

from datetime import datetime, timedelta

from airflow.sdk import DAG, {asset}CronDataIntervalTimetable

from airflow_hops import IngestOperator, {request}SkewOperator
from airflow_hops.extensions.captured_logs import CapturedSource

REQUESTS = CapturedSource(
    {log!r},
{fields}
)

with DAG(
    {dag_id!r},
    schedule=CronDataIntervalTimetable({schedule!r}, timezone="UTC"),
    start_date=datetime.fromisoformat({start!r}),  # the end of the reference window
    catchup=True,
    max_active_runs=1,  # of two runs at a time, one would be tried again{connection}
    doc_md={doc!r},
    tags=["hops", {name!r}],
) as dag:
    requests = IngestOperator(
        task_id="requests",
        sources={{"requests": REQUESTS}},
        window_start="{{{{ data_interval_start }}}}",
        window_end="{{{{ data_interval_end }}}}",
    )
    skew = SkewOperator(
        task_id="skew",
        model_name={name!r},
        captured=requests.output,
        silent_after=timedelta(days=3),  # without a request, the task fails
    )
'''
_REQUEST = """    # A DAG that is scheduled on the asset trains a successor.
    RequestRetrainingOperator(task_id="request_retraining", skew=skew.output, asset=Asset({asset!r}))
"""


@suppress_logs_and_warning
def adopt(args: Namespace) -> None:
    """Writes record, reference and monitor of a model, after the user has seen and confirmed its schema."""
    name, dag_id = args.name, f"{args.name}_monitor"
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InvalidArgument("name", name, "; expected a Python identifier of ASCII letters, digits and '_'")
    if not args.endpoint.startswith(("http://", "https://", SAGEMAKER)):
        raise InvalidArgument(
            "endpoint", args.endpoint, f"; expected http://host:port, https://host, or {SAGEMAKER}NAME"
        )
    if set(args.endpoint) & set("@?#"):  # files of the store and the DAG have the address
        raise BadInput("endpoint has a user, a query or a fragment; expected the address alone, without credentials")
    file = Path(args.output or conf.get_mandatory_value("core", "dags_folder")).expanduser().resolve() / f"{dag_id}.py"
    if file.exists():
        raise BadInput(f"{file}: already exists; delete it, or choose another name, or another folder with --output")
    answer = dict(_pairs("--answer", [args.answer] if args.answer else []))
    if not answer.keys() <= {"probability", "prediction"}:
        raise InvalidArgument("--answer", args.answer, "; expected probability=NAME or prediction=NAME")
    hook = RuntimeHook(args.hops_conn_id)
    hook.make_store()
    if (record := find_record(hook.store, name)) is not None:
        _check_adopted(record, args, hook)
        print(f"Model {name!r} was adopted before: its record stays, and its monitor is written again.")
        return _write_monitor(hook, args, file)
    run = _Run(hook, dag_id, f"adopt__{sortable(now())}")
    source = _source(args, run)
    _check_no_template(source.to_dict())
    window = {"start": args.reference_start, "end": args.reference_end, "now": now()}
    period_s = _PERIODS_S[args.schedule]
    examples = run.artifact(
        "examples", "write_reference", sources={"log": source.to_dict()}, period_s=period_s, **window
    )
    statistics = run.artifact("statistics", "airflow_hops.ml.statistics.stage:run", {"examples": examples})
    for line in _report(run, source, examples, statistics):
        print(line)
    if not args.yes:
        if not sys.stdin.isatty():
            raise BadInput("nothing was adopted: this is not a terminal, so that nobody can be asked; add --yes")
        if not _is_confirmed("Adopt the model with this schema? [y/N] "):
            raise SystemExit("Nothing was adopted.")
    schema = run.artifact("schema", "airflow_hops.ml.schema.stage:run", {"statistics": statistics})
    version = str(hook.store.manifest(examples.uri).properties["adopted"]["version"])
    _check_no_template(version)
    inputs = {"examples": examples, "statistics": statistics, "schema": schema}
    facts = {
        "model_name": name,
        "endpoint": args.endpoint,
        "log": source.to_dict(),
        "version": version,
        "answer": answer,
    }
    run.artifact("model", "run", inputs, **facts)
    _write_monitor(hook, args, file)


def _check_adopted(record: ModelRecord, args: Namespace, hook: RuntimeHook) -> None:
    """Raises BadInput if a record is not that of the same endpoint, whose monitor may be missing."""
    if record.champion is None or record.champion.serving_path != args.endpoint:
        raise BadInput(f"model {args.name!r} has a record in {hook.store.root} already; choose another name")


def _is_confirmed(question: str) -> bool:
    try:
        return input(question).strip().lower() in ("y", "yes")
    except EOFError:
        print()
        return False


def _write_monitor(hook: RuntimeHook, args: Namespace, file: Path) -> None:
    """Writes the DAG of a model's record and its adopted artifact."""
    champion = read_record(hook.store, args.name).champion
    assert champion is not None
    folder = hook.store.local(champion.model) / ModelProperties.of(champion.model).folder
    facts = json.loads((folder / ENDPOINT_FILE).read_text())
    source = CapturedSource.from_value("log", {**facts["log"], "versions": {facts["version"]: champion.version}})
    window = ModelProperties.of(champion.model).window
    assert window is not None and window[1] is not None
    try:
        with staged(file) as staging:
            text = monitor_text(args, file.stem, source, window[1], requests_retraining=facts["answer"] is not None)
            staging.write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(
            f"{file} cannot be written: {error}. The model is adopted; the same command with another --output writes "
            "its monitor"
        ) from error
    print(f"\nModel {args.name!r} is version {champion.version}, and {file} its monitor; read it, and start it:\n")
    print("  airflow dags reserialize   # so that a running Airflow knows the DAG at once, not within minutes")
    print(f"  airflow dags unpause {file.stem}")


class _Run:
    """Steps of one adoption, as of a run of the monitor's DAG."""

    def __init__(self, hook: RuntimeHook, dag_id: str, run_id: str) -> None:
        self.hook, self._dag_id, self._run_id = hook, dag_id, run_id

    def value(self, function: str, inputs: Mapping[str, Artifact] | None = None, kind: str = "", **params: Any) -> Any:
        """Returns the value of a step. Raises the step's error without its name."""
        producer = Producer(self._dag_id, self._run_id, f"adopt_{kind}" if kind else function)
        store, output = self.hook.store, None
        if kind:
            frozen = store.frozen_schema(self._dag_id, "schema") if kind == "schema" else store.address(producer, kind)
            output = Output(frozen, kind)
        spec = StepSpec(
            step="adopt",
            entry=function if ":" in function else f"{_STEPS}:{function}",
            params=params,
            inputs={role: (artifact,) for role, artifact in (inputs or {}).items()},
            output=output,
            producer=producer,
        )
        try:
            return self.hook.run(spec, cache=False, on_line=print_warning).value
        except StepFailed as error:
            raise SystemExit(str(error).removeprefix("step 'adopt': ")) from None

    def artifact(
        self, kind: str, function: str, inputs: Mapping[str, Artifact] | None = None, **params: Any
    ) -> Artifact:
        """Returns the artifact of a step."""
        return Artifact.from_dict(self.value(function, inputs, kind, **params))


def _source(args: Namespace, run: _Run) -> CapturedSource:
    """Returns the source of the endpoint's log, after the endpoint has answered."""
    of_sagemaker = args.endpoint.startswith(SAGEMAKER)
    access = {"storage_conn_id": args.storage_conn_id} if args.storage_conn_id else {}
    place = run.value(
        "check_endpoint", endpoint=args.endpoint, sources={"log": {"uri": "captured://endpoint", **access}}
    )
    log = args.captured or place
    if log is None:
        raise BadInput(f"--captured is missing: {args.endpoint} does not say where its requests are logged")
    layout = args.layout or ("sagemaker" if of_sagemaker else "columns")
    fields: dict[str, Any] = dict(_pairs("--field", args.field))
    if unknown := sorted(fields.keys() - CapturedSource.log_fields()):
        raise BadInput(
            f"--field {unknown[0]!r} is no field of a log; expected one of {', '.join(CapturedSource.log_fields())}"
        )
    if of_sagemaker:
        fields.setdefault("endpoint", args.endpoint.removeprefix(SAGEMAKER))
    if args.prediction:
        fields["outputs"] = _names("--prediction", args.prediction)
    versions = None if args.version is None else {args.version: 1}
    if layout == "columns" and not fields.get("version"):
        if args.version is not None:
            raise BadInput(f"--version is {args.version!r}, but no --field version=… names the log's field of versions")
        versions = {"": 1}
    return CapturedSource(
        log if "://" in log else str(Path(log).expanduser().resolve()),
        model=args.name,
        layout=layout,
        mode="inputs" if args.inputs_only else "all",
        inputs=_names("--input", args.input),
        labels=dict(_pairs("--label", args.label)),
        schema=dict(_pairs("--type", args.type)),
        versions=versions,
        **access,
        **fields,
    )


def _check_no_template(value: object) -> None:
    """Raises BadInput if a text for the DAG has a template, which Airflow would render at each run."""
    if isinstance(value, Mapping | list | tuple):
        for each in [*value, *value.values()] if isinstance(value, Mapping) else value:
            _check_no_template(each)
    elif isinstance(value, str) and _TEMPLATE.search(value):
        raise BadInput(
            f"{value[:200]!r}: Airflow renders '{{{{', '{{%' and '{{#' in the monitor as templates; name the log, its "
            "fields and versions without them"
        )


def _pairs(argument: str, values: Sequence[str]) -> Iterator[tuple[str, str]]:
    for value in values:
        name, separator, rest = value.partition("=")
        if not name or not separator:
            raise BadInput(f"{argument} is {value!r}; expected NAME=VALUE")
        yield name, rest


def _names(argument: str, values: Sequence[str]) -> dict[str, str] | tuple[str, ...]:
    """Returns fields by name, or names alone if none has a field."""
    if not any("=" in value for value in values):
        return tuple(values)
    return dict(_pairs(argument, values))


def _report(run: _Run, source: CapturedSource, examples: Artifact, statistics: Artifact) -> Iterator[str]:
    """Yields the reference window and its columns."""
    adopted, window = (examples.properties[name] for name in ("adopted", "window"))
    counts = examples.rows["train"]
    yield f"{source.log}: entries up to {adopted['until']}"
    name = f" of version {adopted['version']!r}" if adopted["version"] else ""
    yield f"Reference: {counts.rows_out} rows{name}, {window[0] or 'from the first'} to {window[1]}"
    yield from (f"  left out: {count} {reason}" for reason, count in counts.rejected.items())
    if source.mode == "inputs":
        yield "  predictions are not captured: inputs alone are watched"
    yield ""
    folder = run.hook.store.local(statistics)
    features = json.loads((folder / "train" / "statistics.json").read_text())["features"]
    rows = [("column", "type", "missing", "values"), *(_described(name, feature) for name, feature in features.items())]
    widths = [max(len(row[number]) for row in rows) for number in range(3)]
    for row in rows[: _SHOWN + 1]:
        yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
    if len(rows) > _SHOWN + 1:
        yield f"… and {len(rows) - _SHOWN - 1} more"
    yield ""


def _described(name: str, feature: Mapping[str, Any]) -> tuple[str, str, str, str]:
    values = ", ".join(str(value) for value, _ in feature.get("top_values", [])[:4])
    if "min" in feature:
        values = f"{feature['min']:g} to {feature['max']:g}"
    return name, feature["type"], str(feature.get("missing", 0)), values


def monitor_text(args: Namespace, dag_id: str, source: CapturedSource, start: str, *, requests_retraining: bool) -> str:
    """Returns the text of the monitor's DAG file, in which each value is a literal that Airflow does not render."""
    _check_no_template(source.to_dict())
    fields = {name: value for name, value in source.to_dict().items() if name not in ("uri", "time_column")}
    defaults = CapturedSource.defaults(source.layout)
    lines = [f"    {field}={value!r}," for field, value in fields.items() if defaults.get(field) != value]
    doc = f"Watches model `{args.name}`, which {args.endpoint} serves, by the requests in its log."
    connection = args.hops_conn_id
    is_default = connection == RuntimeHook.default_conn_name
    text = _DAG.format(
        name=args.name, dag_id=dag_id, log=source.log, fields="\n".join(lines),
        schedule=args.schedule, doc=doc, start=datetime.fromisoformat(start).isoformat(),
        connection="" if is_default else f'\n    default_args={{"hops_conn_id": {connection!r}}},',
        asset="Asset, " if requests_retraining else "",
        request="RequestRetrainingOperator, " if requests_retraining else "",
    )  # fmt: skip
    return text + (_REQUEST.format(asset=f"{args.name}_drifted") if requests_retraining else "")
