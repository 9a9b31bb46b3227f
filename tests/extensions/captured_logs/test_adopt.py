"""``airflow hops adopt``: from an endpoint of SageMaker to the first verdict, and what it refuses."""

from __future__ import annotations

import ast
import io
import json
import random
import socketserver
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import read_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.cli.adopt import _is_confirmed, monitor_text
from airflow_hops.runner.runtime import RuntimeHook

BEGIN = datetime(2026, 9, 21, tzinfo=UTC)
Hops = Callable[..., tuple[int, str, str]]
LOG = ["--field", "request_id=id", "--field", "captured_at=t", "--field", "version=v"]
PERFORMANCE = """
    from airflow_hops import PerformanceOperator

    output = requests.output
    PerformanceOperator(task_id="performance", model_name="adopted_churn", captured=output, labels=output)
"""
FLAT = [*LOG, "--input", "age=age", "--prediction", "p=p"]


@pytest.fixture(autouse=True)
def warm(monkeypatch: pytest.MonkeyPatch, warm_launcher: Any) -> None:
    """Steps are forked."""
    monkeypatch.setattr(RuntimeHook, "warm_start", lambda hook: warm_launcher.warm)


@pytest.fixture
def aws(s3_endpoint: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Returns clients of AWS; Airflow's connection ``aws_logs`` leads to the same."""
    import boto3

    connection = {"conn_type": "aws", "login": "testing", "password": "testing"}
    extra = {"endpoint_url": s3_endpoint, "region_name": "us-east-1"}
    monkeypatch.setenv("AIRFLOW_CONN_AWS_LOGS", json.dumps({**connection, "extra": extra}))
    return lambda service: boto3.client(service, endpoint_url=s3_endpoint, region_name="us-east-1")


def deploy(sagemaker: Any, name: str, capture: str | None) -> None:
    """Makes an endpoint of one variant."""
    role = "arn:aws:iam::123456789012:role/FakeRole"
    sagemaker.create_model(ModelName=name, ExecutionRoleArn=role, PrimaryContainer={"Image": "image"})
    variant = {"VariantName": "AllTraffic", "ModelName": name, "InitialInstanceCount": 1, "InstanceType": "ml.m5.large"}
    mode = {"CaptureOptions": [{"CaptureMode": "Input"}, {"CaptureMode": "Output"}], "InitialSamplingPercentage": 100}
    config = {"EnableCapture": True, "DestinationS3Uri": capture, **mode} if capture else {}
    more = {"DataCaptureConfig": config} if config else {}
    sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], **more)
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name)


def capture(s3: Any, bucket: str, endpoint: str, hours: int, rows: int) -> None:
    """Writes an hour of requests after another as data capture does; the last hour but one has drifted."""
    rng = random.Random(0)
    for hour in range(hours):
        shift, lines = (2 if hour == hours - 2 else 0), io.StringIO()
        for number in range(rows):
            moment = BEGIN + timedelta(hours=hour, seconds=number)
            age, fare = rng.gauss(40 + 20 * shift, 10), rng.gauss(0, 1)
            parts = {"endpointInput": f"{age},{fare}", "endpointOutput": str(1 / (1 + 2.7 ** -(age / 40 - 1)))}
            data = {
                part: {"observedContentType": "text/csv", "mode": part[8:].upper(), "data": text, "encoding": "CSV"}
                for part, text in parts.items()
            }
            meta = {"eventId": f"{hour}-{number}", "inferenceTime": moment.isoformat().replace("+00:00", "Z")}
            lines.write(json.dumps({"captureData": data, "eventMetadata": meta, "eventVersion": "0"}) + "\n")
        key = f"data/{endpoint}/AllTraffic/{BEGIN + timedelta(hours=hour):%Y/%m/%d/%H}/00-00-1-capture.jsonl"
        s3.put_object(Bucket=bucket, Key=key, Body=lines.getvalue().encode())


def test_a_sagemaker_endpoint_is_judged(aws: Any, hops: Hops, run_dag: Any, tmp_path: Path) -> None:
    aws("s3").create_bucket(Bucket="adopted")
    deploy(aws("sagemaker"), "churn-prod", "s3://adopted/data")
    capture(aws("s3"), "adopted", "churn-prod", hours=5, rows=1500)
    folder = tmp_path / "dags"
    options = ["--storage-conn-id", "aws_logs", "--input", "age", "--input", "fare", "--schedule", "@hourly"]
    command = ["adopt", "adopted_churn", "--endpoint", "sagemaker:churn-prod", *options, "-o", str(folder)]
    code, out, err = hops(*command)
    assert code == 1 and "nothing was adopted: this is not a terminal" in err and not folder.exists()
    assert "Reference: 4500 rows of version 'AllTraffic', from the first to 2026-09-21T03:00:00+00:00" in out
    assert [line.split()[:3] for line in out.splitlines()[3:7]] == [
        ["column", "type", "missing"], ["age", "FLOAT", "0"], ["fare", "FLOAT", "0"],
        ["output.prediction", "FLOAT", "0"],
    ]  # fmt: skip
    code, out, err = hops(*command, "--yes")
    assert code == 0, err
    store = RuntimeHook().store
    record = read_record(store, "adopted_churn")
    assert record.champion and record.champion.serving_path == "sagemaker:churn-prod"
    assert record.owners == () and record.history[0].why.startswith("adopted: version 'AllTr")
    verdicts = {}
    for hour in (4, 5, 6):
        run = run_dag("adopted_churn_monitor", {}, str(folder), logical_date=BEGIN + timedelta(hours=hour))
        assert {task.task_id: task.state for task in run.get_task_instances()} == {
            "requests": "success",
            "skew": "success",
        }
        verdicts[hour] = report_of(store, run.run_id)
    assert verdicts[4]["verdict"] == "drift" and verdicts[5]["verdict"] == "stable"
    assert verdicts[6]["verdict"] == "insufficient" and verdicts[6]["rows_current"] == 0  # nobody asked
    age, fare = (verdicts[4]["features"][name]["score"] for name in ("age", "fare"))
    assert age > 0.5 > 0.1 > fare
    assert verdicts[4]["prediction"]["score"] > 0.5 and verdicts[5]["prediction"]["score"] < 0.05
    assert verdicts[5]["rows_current"] == 1500 and verdicts[5]["versions"] == {"1": 1500}
    monitor = (folder / "adopted_churn_monitor.py").read_text()
    measured = tmp_path / "measured"
    measured.mkdir()
    (measured / "performance.py").write_text(f"{monitor.replace('_monitor', '_measured')}{PERFORMANCE}")
    run = run_dag("adopted_churn_measured", {}, str(measured), logical_date=BEGIN + timedelta(hours=6))
    (task,) = (task for task in run.get_task_instances() if task.task_id == "performance")
    refused = task.xcom_pull(task_ids="performance", key="refused")
    assert task.state == "skipped" and refused == {"reason": "no request was captured in the window"}
    code, out, err = hops(*command, "--yes")
    assert code == 1 and "adopted_churn_monitor.py: already exists" in err
    # As after a command that was killed before it wrote the DAG.
    code, out, err = hops(*command[:-2], "-o", str(tmp_path / "others"))
    assert code == 0 and "Model 'adopted_churn' was adopted before: its record stays" in out, err
    texts = {path.read_text() for path in tmp_path.glob("*/adopted_churn_monitor.py")}
    assert len(texts) == 1 and read_record(store, "adopted_churn") == record
    other = [*command[:3], "sagemaker:other", *command[4:-2]]
    code, out, err = hops(*other, "-o", str(tmp_path / "more"))
    assert code == 1 and "model 'adopted_churn' has a record in" in err


def report_of(store: ArtifactStore, run_id: str) -> Any:
    uri = f"{store.uri('adopted_churn_monitor', run_id, 'skew')}/skew"
    return json.loads(store.read_text(f"{uri}/report.json"))


def test_refuses_endpoints_that_capture_nothing(aws: Any, hops: Hops, tmp_path: Path) -> None:
    deploy(aws("sagemaker"), "silent", None)
    options = ["--storage-conn-id", "aws_logs", "--input", "a", "--yes", "-o", str(tmp_path)]
    code, _, err = hops("adopt", "silent", "--endpoint", "sagemaker:silent", *options)
    assert code == 1 and "SageMaker's endpoint 'silent' captures nothing; give its configuration 'silent' a" in err
    code, _, err = hops("adopt", "silent", "--endpoint", "sagemaker:none", *options)
    assert code == 1 and "SageMaker's endpoint 'none' does not answer" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "expected"), [("y\n", True), ("YES", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_only_a_yes_confirms(typed: str, expected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert _is_confirmed("Adopt?") is expected


@contextmanager
def greeting_server() -> Iterator[str]:
    """A server of another protocol than HTTP."""

    class Greeting(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(b"SSH-2.0\r\n")
            self.request.recv(1000)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greeting) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()


class _Ready(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/v2/health/ready" else 404)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def ready_server() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Ready) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


def test_refuses_by_name(hops: Hops, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    future = {"id": "late", "t": "2400-01-01T00:00:00Z", "v": "a", "age": 1, "p": 1}  # as of a wrong clock
    entries = [{"id": n, "t": f"2026-09-21T0{n // 20}:00:00Z", "v": "ab"[n % 2], "age": n, "p": 1} for n in range(100)]
    log.write_text("".join(f"{json.dumps(entry)}\n" for entry in [*entries, future]))
    with ready_server() as server:
        for name, options, message in [
            ("a-b", FLAT, "name is 'a-b'; expected a Python identifier"),
            ("a", [], "source 'captured:/"),
            ("a", [*FLAT, "--field", "id=x"], "--field 'id' is no field of a log; expected one of request_id"),
            ("a", [*FLAT, "--field", "id"], "--field is 'id'; expected NAME=VALUE"),
            ("a", [*FLAT, "--schedule", "@hourly"], "the versions 'a' (51 requests), 'b' (50 requests); name that of"),
            ("a", [*FLAT, "--version", "a"], "the newest entry is of 2026-09-21T04:00:00+00:00: choose another"),
            ("a", [*LOG[:-2], *FLAT[6:], "--version", "a"], "--version is 'a', but no --field version=… names"),
            (
                "a",
                [*FLAT, "--endpoint", "data:,x"],
                "endpoint is 'data:,x'; expected http://host:port, https://host, or",
            ),
            ("a", [*FLAT, "--endpoint", "http://user:secret@host"], "endpoint has a user, a query or a fragment"),
            ("a", [*FLAT, "--endpoint", f"{server}/?token=secret"], "endpoint has a user, a query or a fragment"),
            (
                "a",
                [*FLAT, "--answer", "score=p"],
                "--answer is 'score=p'; expected probability=NAME or prediction=NAME",
            ),
            (
                "a",
                [*FLAT, "--answer", "prediction=p", "--version", "a", "--schedule", "@hourly"],
                "--answer: how the endpoint is asked is not known; expected a log with the bodies of requests to the",
            ),
            ("a", [*FLAT, "--version", "c", "--schedule", "@hourly"], "30 of version 'a', which was not deployed"),
        ]:
            place = ["--endpoint", server, "--captured", str(log), "-o", str(tmp_path / "dags"), "--yes"]
            code, _, err = hops("adopt", name, *place, *options)
            assert code == 1 and message in err, err
        code, _, err = hops("adopt", "a", "--endpoint", server, *FLAT, "--yes", "-o", str(tmp_path / "dags"))
        assert code == 1 and "--captured is missing" in err
    with greeting_server() as other:
        for address in (server, other, "http://127.0.0.1:x"):
            code, _, err = hops("adopt", "a", "--endpoint", address, "--captured", str(log), *FLAT, "--yes")
            assert code == 1 and f"endpoint '{address}' does not answer (/v2/health/ready: " in err
    assert not (tmp_path / "dags").exists()


HOSTILE = [
    '"""+__import__("os").system("touch /tmp/hacked")+"""',
    *("'''+1+'''", '"', "'", "\\", '\\"""', "\n\nraise SystemExit\n", "\r", "\x00", "\u2028", "\u202e", "\udcff"),
    *("{}", "{name}", "{0.__class__}", "%s", "${x}", "# -*- coding: utf-7 -*-", "日本", " ", "a.md"),
]
TEMPLATES = ["{{ 1 }}", "{% raw %}", "{# x #}", "{{"]


def draw_text(rng: random.Random, templates: bool = False) -> str:
    """A text of hostile parts, perhaps with a template."""
    parts = [rng.choice([*HOSTILE, "a", "b.c", "/x"]) for _ in range(rng.randint(1, 4))]
    return "".join([*parts, *([rng.choice(TEMPLATES)] if templates else [])]) or "a"


def check_hostile_values(seed: int) -> None:
    """Whatever a value is, the monitor parses to exactly this value, and runs nothing; templates are refused."""
    rng = random.Random(seed)
    has_template = rng.random() < 0.2
    place = rng.randrange(5) if has_template else -1
    texts = [draw_text(rng, number == place) for number in range(8)]
    endpoint, connection = f"http://{texts[5]}", texts[6]
    source = CapturedSource(
        f"captured:///{texts[0]}", model="churn", request_id=texts[1], captured_at="t", version="v",
        versions={texts[2]: 1}, inputs={"a": texts[3], texts[7].replace("{", "("): "b"}, outputs={"p": texts[4]},
    )  # fmt: skip
    args = Namespace(name="churn", endpoint=endpoint, hops_conn_id=connection, schedule="@daily")
    start = "2026-09-21T00:00:00+00:00"
    if has_template:
        with pytest.raises(BadInput, match="renders"):
            monitor_text(args, "churn_monitor", source, start, requests_retraining=True)
        return
    text = monitor_text(args, "churn_monitor", source, start, requests_retraining=rng.random() < 0.5)
    tree = ast.parse(text.encode())
    assert [type(each) for each in tree.body[:1]] == [ast.Expr] and type(tree.body[-1]) is ast.With
    assert {type(each) for each in tree.body[1:-1]} == {ast.ImportFrom, ast.Assign}
    made, dag = (node.value if isinstance(node, ast.Assign) else node.items[0].context_expr for node in tree.body[-2:])  # type: ignore[attr-defined]
    written = {word.arg: ast.literal_eval(word.value) for word in made.keywords}
    assert CapturedSource(ast.literal_eval(made.args[0]), **written) == source
    words = {word.arg: word.value for word in dag.keywords}
    assert endpoint in ast.literal_eval(words["doc_md"])
    assert ast.literal_eval(words["default_args"]) == {"hops_conn_id": connection}
    calls = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert calls <= {
        "CapturedSource", "DAG", "CronDataIntervalTimetable", "datetime.fromisoformat", "IngestOperator",
        "SkewOperator", "timedelta", "RequestRetrainingOperator", "Asset",
    }  # fmt: skip


def test_values_in_a_monitor_are_literals() -> None:
    for seed in range(100):
        check_hostile_values(seed)


@pytest.mark.scheduled(part="campaigns")
def test_values_in_2000_monitors_are_literals() -> None:
    for seed in range(1000, 3000):
        check_hostile_values(seed)
