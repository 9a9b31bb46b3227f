"""Steps that make a model of an endpoint that runs already: its reference rows, its artifact and its record."""

from __future__ import annotations

import contextlib
import http.client
import json
import urllib.error
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_hops.core.artifacts.artifact import Artifact, RowCounts
from airflow_hops.core.artifacts.properties import ENDPOINT, ExamplesProperties, ModelProperties
from airflow_hops.core.artifacts.target import BINARY, REGRESSION
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, by_whom, find_record, write_record
from airflow_hops.core.parquet_writer import write_parquet
from airflow_hops.core.processes.temporary_folders import temporary_folder
from airflow_hops.core.store.leases import exclusive
from airflow_hops.core.times import window_time
from airflow_hops.extensions.captured_logs.core.source import ENDPOINT_FILE, SAGEMAKER, CapturedSource
from airflow_hops.extensions.captured_logs.core.windows import LogState, WindowPlan
from airflow_hops.extensions.captured_logs.ml.bodies import parsed
from airflow_hops.extensions.captured_logs.ml.ingest import copy_log, no_rows, read_entries
from airflow_hops.extensions.captured_logs.ml.json_texts import Unusable
from airflow_hops.extensions.captured_logs.ml.left_out import LeftOut
from airflow_hops.extensions.captured_logs.ml.plan import find_files
from airflow_hops.extensions.captured_logs.serving.endpoint import form_of, http_opener, input_types
from airflow_hops.ml.captured.values import dense_values
from airflow_hops.ml.ingest.window import Window
from airflow_hops.ml.metrics.scoring import ScoredModel
from airflow_hops.ml.readers import scan
from airflow_hops.ml.readers.artifact_files import OutputFolder
from airflow_hops.ml.readers.rows_file import RowsFile
from airflow_hops.ml.skew.attribution import dense_rows
from airflow_hops.ml.skew.feature_rows import INPUT, FeatureRows
from airflow_hops.ml.skew.predictions import OUTPUT
from airflow_hops.ml.spark.pools import IN_PROCESS
from airflow_hops.ml.step.context import StepContext
from airflow_hops.ml.tracking import ModelRegistry
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, EstimatorInputs, ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs

_SPLIT = "train"
_PATHS = ("/v2/health/ready", "/ping", "/health", "/")
_ANSWER_S = 10.0
_HOLD_S = 60.0
_ASKED_ROWS = 20


def check_endpoint(context: StepContext, *, endpoint: str, sources: Mapping[str, Any]) -> str | None:
    """Step: checks that an endpoint answers; returns where its captures are, if it says so.

    Args:
        context: The step's context.
        endpoint: ``http://host:port``, ``https://…``, or ``sagemaker:NAME``.
        sources: Fields of a source, ``log``, with the connection to AWS.

    Raises:
        BadInput: it does not answer, or it captures nothing.
    """
    if endpoint.startswith(SAGEMAKER):
        source = sources["log"]
        options = context.spec.source_options.get(source.get("storage_conn_id") or "", {})
        return _sagemaker_captures(endpoint.removeprefix(SAGEMAKER), {**options, **source.get("storage_options", {})})
    problems = list[str]()
    for path in _PATHS:
        try:
            with http_opener().open(f"{endpoint.rstrip('/')}{path}", timeout=_ANSWER_S):
                return None
        except urllib.error.HTTPError as error:
            if error.code < 500 or error.code == 501:  # it may refuse this client, but it is there
                return None
            problems.append(f"{path}: status {error.code}")
        except (OSError, ValueError, http.client.HTTPException) as error:
            problems.append(f"{path}: {error}")
            if isinstance(getattr(error, "reason", error), TimeoutError):
                break
    raise BadInput(
        f"endpoint {endpoint!r} does not answer ({problems[0]}); expected its address, such as http://host:8080"
    )


def _sagemaker_captures(name: str, options: Mapping[str, Any]) -> str:
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.session import get_session

    chosen = {"region_name": None, **options.get("client_kwargs", {})}
    keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "aws_session_token": "token"}
    credentials = {argument: options[option] for argument, option in keys.items() if options.get(option)}
    address = {"endpoint_url": options["endpoint_url"]} if options.get("endpoint_url") else {}
    try:
        client = get_session().create_client("sagemaker", region_name=chosen["region_name"], **address, **credentials)
        described = client.describe_endpoint(EndpointName=name)
        config = client.describe_endpoint_config(EndpointConfigName=described["EndpointConfigName"])
    except (BotoCoreError, ClientError) as error:
        raise BadInput(f"SageMaker's endpoint {name!r} does not answer: {error}") from error
    if described["EndpointStatus"] != "InService":
        raise BadInput(f"SageMaker's endpoint {name!r} is {described['EndpointStatus']}; expected InService")
    capture = config.get("DataCaptureConfig") or {}
    if not capture.get("EnableCapture", True) or not capture.get("DestinationS3Uri"):
        raise BadInput(
            f"SageMaker's endpoint {name!r} captures nothing; give its configuration "
            f"{described['EndpointConfigName']!r} a DataCaptureConfig with EnableCapture and DestinationS3Uri"
        )
    return f"{capture['DestinationS3Uri'].rstrip('/')}/{name}"


def write_reference(
    context: StepContext,
    *,
    sources: Mapping[str, Any],
    period_s: int,
    now: str,
    start: str | None = None,
    end: str | None = None,
) -> Artifact:
    """Step: writes the rows of a log's reference window as ``examples``.

    Args:
        context: The step's context.
        sources: Fields of the source ``log``. Without ``versions``, the log has to have one version.
        period_s: Seconds of a window of the monitor. Without ``end``, the reference ends before the last window that is
            complete.
        now: The time; an entry of a later one is of a clock that is wrong.
        start: Start of the reference, ISO 8601; None for the log's first row.
        end: End of the reference.

    Returns:
        The examples: features by name, and predictions as ``output.<name>``. Property ``adopted``: the log's name of
        the ``version``, and ``until``, the time of the newest entry.

    Raises:
        BadInput: the log has no such rows, several versions, or an entry cannot be read.
        HopsError: the store does not answer.
    """
    (source,) = context.sources({"log": CapturedSource.from_value("log", sources["log"])}).values()
    state = LogState().found(find_files(source)[0], "reference")
    _, plan = state.planned("reference", None, None, now=0, lookback=source.lookback)
    versions, latest, forms = _scanned(source, plan, datetime.fromisoformat(now))
    if source.versions is None:
        if len(versions) > 1:
            listed = ", ".join(f"{name!r} ({count} requests)" for name, count in versions.most_common())
            raise BadInput(f"{source.uri}: the log has the versions {listed}; name that of the model by --version")
        source = replace(source, versions=dict.fromkeys(versions, 1))
    period = timedelta(seconds=period_s)
    until = window_time("reference_end", end) or _floor(latest, period_s) - period
    first = window_time("reference_start", start)
    first_us = None if first is None else round(first.timestamp() * 10**6)
    plan = replace(plan, end=round(until.timestamp() * 10**6), start=first_us)
    with temporary_folder("part") as folder, context.output() as writer:
        window, output = Window(first, until), OutputFolder(str(folder))
        counts, _ = copy_log("captured", source, plan.to_dict(), window, output, IN_PROCESS, context.progress)
        if not counts.rows_out:
            raise BadInput(
                f"{no_rows(source, LeftOut(counts.rejected), window)}; the newest entry is of {latest.isoformat()}: "
                "choose another --reference-end"
            )
        paths = sorted((folder / "captured").glob("*.parquet"))
        columns = _write_examples(paths, writer.path / _SPLIT)
        (version,) = source.versions or {"": 1}
        bounds = None if first is None else first.isoformat(), until.isoformat()
        properties = ExamplesProperties(window=bounds, splits=(_SPLIT,), columns=columns).to_dict()
        # That of most requests, as a client may send odd ones.
        form = json.loads(max(forms[version], key=forms[version].__getitem__)) if version in forms else None
        return writer.commit(
            rows={_SPLIT: RowCounts(counts.rows_in, counts.rows_out, counts.rejected)},
            properties={**properties, "adopted": {"version": version, "until": latest.isoformat(), "form": form}},
        )


def _scanned(
    source: CapturedSource, plan: WindowPlan, now: datetime
) -> tuple[Counter[str], datetime, dict[str, Counter[str]]]:
    """Returns the entries by version, the time of the newest that is not in the future, and the forms of requests."""
    versions, latest_us, now_us = Counter[str](), None, now.timestamp() * 10**6
    forms: dict[str, Counter[str]] = {}
    for entry in read_entries(source, plan, LeftOut(), lambda share, text: None):
        if source.endpoint is None or entry.endpoint in (None, source.endpoint):
            versions[entry.version] += 1
            with contextlib.suppress(Unusable):
                form = form_of(parsed(entry.inputs, entry.encoding, entry.where), entry.outputs)
                forms.setdefault(entry.version, Counter())[json.dumps(form)] += 1
            if entry.at_us <= now_us:
                latest_us = max(entry.at_us, latest_us or entry.at_us)
    if latest_us is None:
        raise BadInput(
            f"{source.uri}: the log has no entries up to {now.isoformat()}; send requests, or check its address, the "
            "endpoint's name, and the unit of times"
        )
    return versions, datetime.fromtimestamp(latest_us / 10**6, UTC), forms


def _floor(time: datetime, period_s: int) -> datetime:
    return datetime.fromtimestamp(time.timestamp() // period_s * period_s, UTC)


def _write_examples(paths: list[Path], folder: Path) -> dict[str, str]:
    """Writes captured rows as examples, and returns the types of their columns."""
    folder.mkdir(parents=True)
    fields: dict[str, str] = {}
    for number, path in enumerate(paths):
        file = RowsFile.at(path)
        names = [name for name in scan.schema(file).names if name.startswith((INPUT, OUTPUT))]
        batches = list(FeatureRows([file], "")(names))
        table = pa.Table.from_batches(batches)
        for index, name in enumerate(names):
            kind = table.schema.field(index).type
            if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
                table = table.set_column(index, name, table.column(index).cast(pa.int64()))
        table = table.rename_columns([name.removeprefix(INPUT) for name in names])
        fields = {field.name: str(field.type) for field in table.schema}
        write_parquet(table, folder / f"part-{number:05}.parquet")
    return fields


def run(
    context: StepContext,
    *,
    model_name: str,
    endpoint: str,
    log: Mapping[str, Any],
    version: str,
    answer: Mapping[str, str] | None = None,
) -> Artifact:
    """Step: writes the model artifact of an endpoint, registers it, and makes it the champion of a new record.

    Args:
        context: Step with the inputs ``examples``, ``statistics`` and ``schema``.
        model_name: Name of the model.
        endpoint: Address of the endpoint.
        log: Fields of the source of its log.
        version: The log's name of the version.
        answer: ``probability`` or ``prediction``, and the log's name of the prediction that it is; None if successors
            are not compared with the endpoint.

    Raises:
        BadInput: the model has a record already; or with ``answer``, it is not known how the endpoint is asked, or it
            answers otherwise than it did.
        HopsError: MLflow does not answer.
    """
    store, statistics, schema = context.store, context.input("statistics"), context.input("schema")
    columns = ExamplesProperties.of(context.input("examples")).columns or {}
    features = tuple(name for name in columns if not name.startswith(OUTPUT))
    lock = store.internal("_state", "adopted", model_name)
    with exclusive(store, lock, f"the adoption of model {model_name!r}", _HOLD_S):
        if find_record(store, model_name) is not None:
            raise BadInput(f"model {model_name!r} has a record already; choose another name")
        properties = ModelProperties(
            features=features,
            inputs=features,
            window=ExamplesProperties.of(context.input("examples")).window,
            statistics=statistics.uri,
            statistics_fingerprint=statistics.fingerprint,
            schema=schema.uri,
            format=ENDPOINT,
            problem={"probability": BINARY, "prediction": REGRESSION, None: None}[next(iter(answer or {}), None)],
        )
        with context.output() as writer:
            folder = writer.path / properties.folder
            folder.mkdir()
            form = context.input("examples").properties["adopted"]["form"]
            output = next(iter(answer.values())) if answer else None
            facts = {"endpoint": endpoint, "version": version, "log": dict(log), "form": form, "answer": output}
            (folder / ENDPOINT_FILE).write_text(json.dumps(facts, indent=1) + "\n")
            if output is not None:
                _describe(folder, form, {name: columns[name] for name in features}, str(properties.problem))
                _check_answers(folder, context.local("examples") / _SPLIT, f"{OUTPUT}{output}")
            model = writer.commit(properties=properties.to_dict())
        producer = context.spec.producer
        number = ModelRegistry(context.spec.services.get("tracking_uri", ""), model_name).register(model, producer)
        served = ServedVersion.of(model, number, endpoint, 100)
        why = f"adopted: version {version!r} of {endpoint}"
        event = {
            "by": by_whom(producer),
            "traffic": {number: 100},
            "fingerprint": model.fingerprint,
            "model": model.uri,
        }
        record = ModelRecord(champion=served).after("deployed", number, why, **event)
        write_record(store, model_name, record)
    return model


def _describe(folder: Path, form: Mapping[str, Any] | None, columns: Mapping[str, str], problem: str) -> None:
    """Writes the signature of an endpoint. Raises BadInput if it cannot be asked."""
    if form is None:
        raise BadInput(
            "--answer: how the endpoint is asked is not known; expected a log with the bodies of requests to the Open "
            "Inference Protocol (v2) or to MLflow's /invocations (--field request=…, response=…). Without --answer, "
            "the endpoint is watched alone"
        )
    try:
        inputs = EstimatorInputs(input_types(form, columns))
    except KeyError as error:
        raise BadInput(f"--answer: a feature is of the type {error}; expected numbers, truths or texts") from error
    signature = ModelSignature(inputs, inputs, outputs=ProblemOutputs(problem))
    (folder / SIGNATURE_FILE).write_text(signature.to_json())


def _check_answers(folder: Path, examples: Path, output: str) -> None:
    """Asks an endpoint for rows of the reference, and raises BadInput if it does not answer as it did."""
    table = scan.table([min(examples.glob("*.parquet"))]).slice(0, _ASKED_ROWS)
    if output not in table.column_names:
        names = [name.removeprefix(OUTPUT) for name in table.column_names if name.startswith(OUTPUT)]
        raise BadInput(
            f"--answer names {output.removeprefix(OUTPUT)!r}; the log has the predictions {', '.join(names)}"
        )
    model = ScoredModel(folder)
    answers = model.predict(dense_rows(table, model.inputs, "reference"))
    logged = dense_values(table[output].combine_chunks(), wide=True)
    logged = logged[:, -1] if logged.ndim == 2 and logged.shape[1] == 2 else logged.reshape(len(table), -1)[:, 0]
    if not np.allclose(answers, logged, rtol=1e-3, atol=1e-5, equal_nan=True):
        row = int(np.argmax(np.abs(answers - logged)))
        raise BadInput(
            f"the endpoint answers {answers[row]:g} in row {row} of the reference, where {logged[row]:g} was logged: "
            "has it another model by now, or is another output meant by --answer?"
        )
