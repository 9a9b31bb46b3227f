"""An adopted endpoint as a model: how it is asked, and a successor that is judged against it and serves beside it."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from http_answers import HttpRequest, answering

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.evaluation import EvaluationReport
from airflow_hops.core.models.model_record import find_record, read_record
from airflow_hops.core.serving_api import tensors
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.ml import adopt
from airflow_hops.extensions.captured_logs.serving.endpoint import form_of, input_types
from airflow_hops.extensions.frameworks.ml.scikit_learn import write_skops
from airflow_hops.ml.deploy import stage as deploy
from airflow_hops.ml.evaluate import stage as evaluate
from airflow_hops.ml.schema import stage as schema
from airflow_hops.ml.statistics import stage as statistics
from airflow_hops.serving.errors import ServingError
from airflow_hops.serving.models.formats import ModelOptions, open_model
from airflow_hops.serving.models.model_signature import SIGNATURE_FILE, EstimatorInputs, ModelSignature
from airflow_hops.serving.models.signature_defs import ProblemOutputs
from airflow_hops.testing.model_formats import ModelFormatContract
from tests import flights_examples
from tests.ml.extensions.captured_logs import logs
from tests.ml.model_servers import running_server

FEATURES = ["age", "fare"]


_STATUS = {"broken": 503, "missing": 404, "moved": 302}


class Adding:
    """An endpoint that answers with the sum of each row, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked, self.url = list[Any](), ""

    def answer(self, request: HttpRequest) -> tuple[Any, ...] | None:
        if request.method == "GET":
            return self.health(request.path.split("/")[1])
        path, body = request.path, request.json()
        self.asked.append((path, body))
        if path == "/invocations":
            answer: Any = {"predictions": [sum(row) for row in body["dataframe_split"]["data"]]}
        else:
            columns = [np.reshape(part["data"], (part["shape"][0], -1)) for part in body["inputs"]]
            total = np.concatenate(columns, axis=1).sum(axis=1)
            answer = {"outputs": [{"name": "sum", "shape": [len(total), 1], "data": total.tolist()}]}
        if "slow" in path:
            time.sleep(1)
        content = b"<html>" if "page" in path else json.dumps(answer).encode()
        status = next((code for name, code in _STATUS.items() if name in path), 200)
        length = str(len(content) + ("cut" in path))
        return status, content, {"Content-Length": length, "Location": path.replace("moved", "sums")}

    def health(self, kind: str) -> tuple[Any, ...] | None:
        if kind == "hangs":
            time.sleep(2)
        status = {"page": 200, "moved": 302, "unknown": 404, "no-get": 501}.get(kind, 503)
        return None if kind == "cut" else (status, b"<html>", {"Location": "file:///etc/passwd"})


@pytest.fixture(scope="module")
def adding() -> Iterator[Adding]:
    adding = Adding()
    with answering(adding.answer) as adding.url:
        yield adding


def v2(*parts: Mapping[str, Any], model: str = "sums", **more: Any) -> Any:
    return form_of({"inputs": list(parts), **more}, {"model_name": model, "outputs": []})


COLUMNS = v2(*({"name": name, "datatype": "FP64", "shape": [7, 1]} for name in FEATURES))


def write_endpoint(folder: Path, server: Adding, form: Any, answer: str | None = "sum") -> None:
    inputs = EstimatorInputs(dict.fromkeys(FEATURES, tensors.BY_NAME["double"]))
    (folder / SIGNATURE_FILE).write_text(ModelSignature(inputs, inputs, outputs=ProblemOutputs("regression")).to_json())
    facts = {"endpoint": f"{server.url}/", "form": form, "answer": answer}
    (folder / "endpoint.json").write_text(json.dumps(facts))


class TestEndpointFormat(ModelFormatContract):
    format = "endpoint"
    rows = {name: np.array([0.5, 1.5, -2.0]) for name in FEATURES}

    @pytest.fixture(autouse=True)
    def server(self, adding: Adding) -> None:
        self._adding = adding

    def write(self, folder: Path) -> None:
        write_endpoint(folder, self._adding, COLUMNS)


MATRIX = v2(
    {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"content_type": "np"}}, parameters={"a": 1}
)
TABLE = form_of({"dataframe_split": {"columns": [], "data": []}}, {"predictions": []})


@pytest.mark.parametrize(
    ("form", "path", "body"),
    [
        (COLUMNS, "/v2/models/sums/infer", {"inputs": [
            {"name": "age", "datatype": "FP64", "shape": [2, 1], "parameters": {}, "data": [1.0, None]},
            {"name": "fare", "datatype": "FP64", "shape": [2, 1], "parameters": {}, "data": [2.0, 3.0]},
        ]}),
        ({**MATRIX, "version": "v1"}, "/v2/models/sums/versions/v1/infer", {"parameters": {"a": 1}, "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [2, 2], "parameters": {"content_type": "np"},
             "data": [1.0, 2.0, None, 3.0]},
        ]}),
        (TABLE, "/invocations", {"dataframe_split": {"columns": FEATURES, "data": [[1.0, 2.0], [None, 3.0]]}}),
    ],
)  # fmt: skip
def test_endpoint_is_asked_as_in_its_log(form: Any, path: str, body: Any, adding: Adding, tmp_path: Path) -> None:
    write_endpoint(tmp_path, adding, form)
    servable = open_model("model", 1, tmp_path, ModelOptions())
    with pytest.raises(ServingError):  # the server cannot add nothing to a number
        servable.predict({"age": np.array([1.0, np.nan]), "fare": np.array([2.0, 3.0])})  # type: ignore[attr-defined]
    assert adding.asked.pop() == (path, body)
    answer = servable.predict({"age": np.array([1.0, 5]), "fare": np.array([2.0, 3])})  # type: ignore[attr-defined]
    assert answer["prediction"].tolist() == [3.0, 8.0]


def test_rows_of_the_types_of_trainings_are_asked_in_those_of_the_endpoint(adding: Adding, tmp_path: Path) -> None:
    kinds = {"cost": "FP64", "age": "INT32", "late": "BOOL", "few": "UINT8", "half": "FP16"}
    form = v2(*({"name": name, "datatype": kind, "shape": [9]} for name, kind in kinds.items()))
    columns = {"cost": "double", "age": "int64", "late": "int64", "few": "int64", "half": "double"}
    types = input_types(form, columns)
    assert {name: kind.name for name, kind in types.items()} == {
        "cost": "float", "age": "int64", "late": "int64", "few": "int64", "half": "float",
    }  # fmt: skip
    assert input_types(TABLE, {"a": "string", "b": "double"})["a"].name == "string"
    with pytest.raises(KeyError, match="list"):
        input_types(TABLE, {"a": "list<item: double>"})
    inputs = EstimatorInputs(types)
    write_endpoint(tmp_path, adding, form)
    signature = ModelSignature(inputs, inputs, outputs=ProblemOutputs("regression"))
    (tmp_path / SIGNATURE_FILE).write_text(signature.to_json())
    rows = {"cost": [0.1, 19.99], "age": [3, 4], "late": [0, 1], "few": [5, 6], "half": [0.5, -2]}
    values = {name: np.array(column, types[name].numpy) for name, column in rows.items()}
    servable: Any = open_model("model", 1, tmp_path, ModelOptions())
    assert servable.predict(values)["prediction"].tolist() == pytest.approx([8.6, 28.99])
    asked = {part["name"]: part["data"] for part in adding.asked.pop()[1]["inputs"]}
    assert asked == {**rows, "late": [False, True]}


@pytest.mark.parametrize(
    ("form", "answer", "message"),
    [
        ({**COLUMNS, "model": "broken"}, "sum", "UNAVAILABLE.*models/broken/infer: status 503"),
        ({**COLUMNS, "model": "missing"}, "sum", "INVALID_ARGUMENT.*status 404"),
        (COLUMNS, "product", "UNAVAILABLE.*the answer has no output 'product'; it has sum"),
        ({**COLUMNS, "model": "page"}, "sum", "UNAVAILABLE.*the answer cannot be used: JSONDecodeError"),
        ({**COLUMNS, "model": "cut"}, "sum", "UNAVAILABLE.*IncompleteRead"),
        ({**COLUMNS, "model": "moved"}, "sum", "UNAVAILABLE.*status 302"),
        ({**COLUMNS, "model": "a/../missing c?"}, "sum", "/v2/models/a%2F..%2Fmissing%20c%3F/infer: status 404"),
        (COLUMNS, None, "FAILED_PRECONDITION.*was adopted without --answer.*a model_name of its own"),
    ],
)
def test_endpoint_that_cannot_be_asked_is_an_error(
    form: Any, answer: str | None, message: str, adding: Adding, tmp_path: Path
) -> None:
    write_endpoint(tmp_path, adding, form, answer)
    with pytest.raises(ServingError) as raised:
        open_model("model", 1, tmp_path, ModelOptions()).predict({name: np.ones(2) for name in FEATURES})  # type: ignore[attr-defined]
    assert re.search(message, f"{raised.value.code.name} {raised.value}", re.DOTALL)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        ("page", None), ("moved", None), ("unknown", None), ("no-get", None),
        ("down", "/v2/health/ready: status 503"), ("cut", "closed connection"), ("hangs", "timed out"),
    ],
)  # fmt: skip
def test_endpoint_is_there_if_it_answers_anything(
    kind: str, problem: str | None, adding: Adding, make_context: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adopt, "_ANSWER_S", 0.3 if kind == "hangs" else 60.0)
    endpoint = f"{adding.url}/{kind}"
    with nullcontext() if problem is None else pytest.raises(BadInput, match=f"does not answer .*{problem}"):
        assert adopt.check_endpoint(make_context(), endpoint=endpoint, sources={}) is None


@pytest.mark.parametrize("scheme", ["file://", "ftp://", "data:"])
def test_endpoint_is_asked_by_http_alone(scheme: str, adding: Adding, tmp_path: Path) -> None:
    write_endpoint(tmp_path, adding, TABLE)
    answer = tmp_path / "answer.json"
    answer.write_text('{"predictions": [1.0, 2.0]}')
    facts = json.loads((tmp_path / "endpoint.json").read_text())
    (tmp_path / "endpoint.json").write_text(json.dumps({**facts, "endpoint": f"{scheme}{answer}#"}))
    with pytest.raises(ServingError, match=f"unknown url type: {scheme[:4].rstrip(':/')}"):
        open_model("model", 1, tmp_path, ModelOptions()).predict({name: np.ones(2) for name in FEATURES})  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "part", [{"name": "x"}, {"datatype": "FP32"}, {"name": "x", "datatype": 7, "shape": [1]}, {"name": 1}, None]
)
def test_damaged_parts_of_a_request_are_not_asked(part: Any) -> None:
    whole = {"name": "x", "datatype": "FP32", "shape": [1, 1], "parameters": None, "data": [1]}
    assert v2(whole) is not None and v2(whole, part) is None
    assert form_of({"inputs": [whole]}, {"outputs": []}) is None


@pytest.mark.parametrize("body", ["1,2", {"instances": [[1]]}, [[1]], "{", None, {"inputs": [[1, 2]]}])
def test_other_protocols_are_not_asked(body: Any) -> None:
    assert form_of(body, {"outputs": []}) is None


def drawn(rows: int, seed: int) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(random.normal(size=(rows, 2)), columns=FEATURES)
    frame["late"] = (frame["age"] + 0.5 * frame["fare"] + random.normal(0, 0.5, rows) > 0).astype(np.int64)
    return frame


def write_classifier(folder: Path, features: list[str], kind: str = "float") -> Any:
    from sklearn.linear_model import LogisticRegression

    frame = drawn(2000, 1)
    model = LogisticRegression().fit(frame[FEATURES] * [name in features for name in FEATURES], frame["late"])
    folder.mkdir(parents=True)
    write_skops(model, folder)
    inputs = EstimatorInputs(dict.fromkeys(FEATURES, tensors.BY_NAME[kind]))
    (folder / SIGNATURE_FILE).write_text(ModelSignature(inputs, inputs, outputs=ProblemOutputs("binary")).to_json())
    return model


@pytest.mark.runtime
def test_successor_is_judged_against_the_endpoint_and_serves_beside_it(
    store: ArtifactStore, run_stage: Callable[..., Any], runtime_python: Path, tmp_path: Path
) -> None:
    from sklearn.metrics import roc_auc_score

    worse = write_classifier(tmp_path / "endpoint-models" / "scores" / "1", ["fare"], "double")
    flags = {"model_name": "scores", "model_base_path": tmp_path / "endpoint-models" / "scores"}
    services = {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    with running_server(runtime_python, tmp_path / "endpoint", flags) as endpoint:
        log = tmp_path / "log.jsonl"
        for number in range(40):
            rows = drawn(50, 100 + number)
            parts = [{"name": n, "shape": [50, 1], "datatype": "FP64", "data": rows[n].tolist()} for n in FEATURES]
            answer = endpoint.post("/v2/models/scores/infer", {"inputs": parts})
            facts = {"id": str(number), "t": f"2026-11-01T{number // 20:02}:{number % 20:02}:00Z", "v": "blue"}
            logs.append(log, [{**facts, "q": {"inputs": parts}, "s": answer}])
        bodies = {"request_id": "id", "captured_at": "t", "version": "v", "request": "q", "response": "s"}
        source = CapturedSource(str(log), model="churn", **bodies)
        window = {"period_s": 3600, "now": "2026-11-02T00:00:00+00:00", "end": "2026-11-01T03:00:00+00:00"}
        examples = run_stage(adopt.write_reference, kind="examples", sources={"log": source.to_dict()}, **window)
        inputs = {
            "examples": examples,
            "statistics": run_stage(statistics.run, kind="statistics", inputs={"examples": examples}),
        }
        inputs["schema"] = run_stage(schema.run, kind="schema", inputs={"statistics": inputs["statistics"]})
        facts = {"model_name": "churn", "log": source.to_dict(), "version": "blue", "endpoint": endpoint.url}
        options = {"kind": "model", "inputs": inputs, "services": services, **facts}
        with pytest.raises(BadInput, match="the log has the predictions probability"):
            run_stage(adopt.run, answer={"probability": "score"}, **options)
        run_stage(adopt.run, answer={"probability": "probability"}, **options)
        better, candidate = candidate_of(store, tmp_path)
        evaluated = flights_examples.write_examples(store, {"eval": drawn(1000, 3)}, key=None, time=None)
        evaluation = run_stage(
            evaluate.run, kind="evaluation", inputs={"model": candidate, "examples": evaluated}, model_name="churn"
        )
        report = EvaluationReport.from_dict(json.loads((store.local(evaluation) / "evaluation.json").read_text()))
        frame = drawn(1000, 3)
        expected = roc_auc_score(frame["late"], worse.predict_proba(frame[FEATURES])[:, 1])
        assert report.blessed and report.splits["eval"].champion["auc"] == pytest.approx(expected)
        config, traffic = tmp_path / "models.config", tmp_path / "traffic.json"
        config.write_text("model_config_list {}\n")
        (tmp_path / "models").mkdir()
        waits = {
            f"{name}_poll_wait_seconds": 0.1 for name in ("model_config_file", "file_system", "traffic_config_file")
        }
        files = {"model_config_file": config, "traffic_config_file": traffic}
        with running_server(runtime_python, tmp_path / "server", {**files, **waits}) as server:
            services |= {
                "serving_host": "127.0.0.1", "serving_port": str(server.ports["port"]),
                "serving_rest_port": str(server.ports["rest_api_port"]), "serving_base_path": str(tmp_path / "models"),
                "serving_config_file": str(config), "serving_traffic_file": str(traffic),
            }  # fmt: skip
            roles = {"model": candidate, "evaluation": evaluation}
            deployed = run_stage(
                deploy.run, kind="deployment", inputs=roles, services=services, model_name="churn", canary_percent=50
            )
            assert deployed.properties["traffic"] == {"1": 50, "2": 50}
            models, answered = {"1": worse, "2": better}, Counter[str]()
            for number in range(40):
                row = drawn(1, number)[FEATURES]
                body = {
                    "inputs": [
                        {"name": n, "shape": [1, 1], "datatype": "FP32", "data": row[n].tolist()} for n in FEATURES
                    ]
                }
                answer = server.post("/v2/models/churn/infer", body)
                answered[answer["model_version"]] += 1
                expected = models[answer["model_version"]].predict_proba(row)[0, 1]
                assert answer["outputs"][0]["data"][0] == pytest.approx(expected, rel=1e-5)
            assert min(answered["1"], answered["2"]) >= 8 and answered.total() == 40
    record = read_record(store, "churn")
    assert record.champion is not None and record.champion.serving_path == endpoint.url


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("broken", "models/broken/infer: status 503"),
        ("slow", "does not answer"),
        ("other", r"answers 3 in row 0 of the reference, where 4 was logged: has it another model by now"),
    ],
)
def test_endpoint_that_does_not_answer_as_logged_is_not_adopted(
    model: str, message: str, adding: Adding, store: ArtifactStore, run_stage: Callable[..., Any],
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr("airflow_hops.extensions.captured_logs.serving.endpoint._TIMEOUT_S", 0.2)
    parts = [
        {"name": n, "shape": [1, 1], "datatype": "FP64", "data": [v]} for n, v in {"age": 1.0, "fare": 2.0}.items()
    ]
    output = {"name": "sum", "shape": [1, 1], "datatype": "FP64", "data": [4.0 if model == "other" else 3.0]}
    answer = {"model_name": model, "outputs": [output]}
    line = {"t": "2026-11-01T00:00:00Z", "v": "blue", "q": {"inputs": parts}, "s": answer}
    logs.append(tmp_path / "log.jsonl", [{**line, "id": str(number)} for number in range(3)])
    bodies = {"request_id": "id", "captured_at": "t", "version": "v", "request": "q", "response": "s"}
    log = CapturedSource(str(tmp_path / "log.jsonl"), model="sums", **bodies).to_dict()
    window = {"period_s": 3600, "now": "2026-11-02T00:00:00+00:00", "end": "2026-11-01T01:00:00+00:00"}
    examples = run_stage(adopt.write_reference, kind="examples", sources={"log": log}, **window)
    inputs = {"examples": examples, "statistics": examples, "schema": examples}  # which it only names
    facts = {"model_name": "sums", "log": log, "version": "blue", "answer": {"prediction": "sum"}}
    services = {"tracking_uri": f"sqlite:///{tmp_path}/mlflow.db"}
    with pytest.raises(HopsError, match=message):
        run_stage(adopt.run, kind="model", inputs=inputs, services=services,
                  endpoint=adding.url, **facts)  # fmt: skip
    assert find_record(store, "sums") is None and not (tmp_path / "mlflow.db").exists()


def candidate_of(store: ArtifactStore, folder: Path) -> tuple[Any, Artifact]:
    model = write_classifier(folder / "candidate", FEATURES)
    with store.create(store.uri("dag", "run", "train", "model"), "model", Producer("dag", "run", "train")) as writer:
        (folder / "candidate").rename(writer.path / "skops")
        (writer.path / "training.json").write_text("{}")
        facts = {"features": FEATURES, "inputs": FEATURES, "label": "late", "problem": "binary", "synchronized": True}
        return model, writer.commit(properties={**facts, "format": "skops", "signature": "serving_default"})
