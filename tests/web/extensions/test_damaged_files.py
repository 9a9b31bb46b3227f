"""Every route answers with what is so, or with why that is not known, whatever the store holds, and if it is away."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import pytest
from airflow.api.common.delete_dag import delete_dag
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from health_world import FILE, WHY, HealthWorld, connections
from http_answers import HttpRequest, answering
from other_projects import free_port
from sqlalchemy import select
from world import path_of, write_artifact

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Producer, cache_key, name_in
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, by_whom, record_uri, write_record
from airflow_hops.core.skew import SkewVerdict
from airflow_hops.core.steps.run_record import TRAIN_ENTRY, RunRecord, UserCode
from airflow_hops.core.steps.run_record import write_record as write_step
from airflow_hops.core.store.artifact_store import MARKER
from tests.extensions.experiments.written_studies import write_study
from tests.extensions.rehearsal.small_rehearsals import small_rehearsal, write_rehearsal
from web.conftest import Api
from web.test_access import NAMES, _path, protected
from web.test_training_runs import write as write_training

pytestmark = pytest.mark.runtime

MODEL = NAMES["model"]
SERVED = "/api/pipelines/activity?dag_id=eta_training"
PARTS = ["evaluation", "performance", "studies/search", "rehearsals/", "skew", "card", "anomalies", "lineage"]
PARTS += ["/pipelines", "/curves"]
"""Parts of paths that must be among those with an answer."""
BEFORE = Path(__file__).parents[2] / "written_before"
KEPT = ("kind", "files", "format_version", "fingerprint", "producer")
"""Without these, a manifest is that of another artifact, or of none, and nothing else of it is read."""


def _leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {name: _leaves(item, change) for name, item in value.items()}
    if isinstance(value, list):
        return [_leaves(item, change) for item in value]
    return change(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def _first_changed(value: Any, to: Any) -> Any:
    return {**value, next(iter(value)): to} if isinstance(value, dict) else [to, *value[1:]]


VALUES: dict[str, Callable[[Any], Any]] = {
    "NaN": lambda value: _leaves(value, lambda leaf: float("nan")),
    "infinite numbers": lambda value: _leaves(value, lambda leaf: float("inf") if _is_number(leaf) else leaf),
    "huge integers": lambda value: _leaves(value, lambda leaf: 10**400 if _is_number(leaf) else leaf),
    "texts": lambda value: _leaves(value, lambda leaf: "text"),
    "lists": lambda value: _leaves(value, lambda leaf: [leaf]),
    "nulls": lambda value: _leaves(value, lambda leaf: None),
    "surrogates": lambda value: _leaves(value, lambda leaf: "\ud800" if isinstance(leaf, str) else leaf),
    "objects": lambda value: _leaves(value, lambda leaf: {"password": "hunter2"}),
    "values nested 90 deep": lambda value: _leaves(value, lambda leaf: _nested(90)),
    "values nested 900 deep": lambda value: _first_changed(value, _nested(900)) if value else value,
    "no first field": lambda value: dict(list(value.items())[1:]) if isinstance(value, dict) else value[1:],
    "no fields within": lambda value: {name: {} for name in value} if isinstance(value, dict) else [],
    "lists of nothing": lambda value: {name: [] for name in value} if isinstance(value, dict) else [],
    "a long text": lambda value: {**value, "reasons": ["x" * 20_000_000]} if "reasons" in value else value,
}
TEXTS: dict[str, Callable[[bytes], bytes]] = {
    "nothing but brackets": lambda content: b"[" * 100_000 + b"]" * 100_000,
    "an integer of 5000 digits": lambda content: b'{"version": ' + b"9" * 5000 + b"}",
    "half of it": lambda content: content[: len(content) // 2],
    "bytes": lambda content: bytes(range(256)) * 40,
    "nothing": lambda content: b"",
    "a number": lambda content: b"7",
    "a list": lambda content: b"[1]",
    "an object": lambda content: b"{}",
}


def _changed(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def change_lines(content: bytes) -> bytes:
        with contextlib.suppress(ValueError):  # one file is no JSON
            try:
                values = [json.loads(content)]
            except ValueError:
                values = [json.loads(line) for line in content.splitlines()]
            return b"\n".join(json.dumps(change(value)).encode() for value in values)
        return content

    return change_lines


def _facts_changed(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def change_facts(content: bytes) -> bytes:
        value = json.loads(content)
        retained = {name: value.pop(name) for name in KEPT}
        return json.dumps({**change(value), **retained}).encode()

    return change_facts


def _serve(request: HttpRequest) -> tuple[int, Any]:
    """Answers as a model server with a version of each model."""
    if request.path.startswith("/v1/models/"):
        return 200, {"model_version_status": [{"version": "2", "state": "AVAILABLE", "status": {}}]}
    counts = {"models": {"eta": {"versions": {"2": {"requests": 5}}}}}
    return (200, counts) if request.path == "/v1/stats" else (404, {"error": "there is no such path"})


def _happened(api: Api, settings: pytest.MonkeyPatch, port: int) -> list[dict[str, str]]:
    """Fills pipelines of every health, a measured training, and a failed, a running and a waiting task."""
    root = path_of(api.store.root).parent
    for name, value in connections(root, port).items():
        settings.setenv(name, value)
    health = HealthWorld(root)
    health.fill(datetime.now(UTC))
    running = health.run("eta_training", datetime.now(UTC), {"train": "deferred"}, "running")
    write_artifact(api.store, by=running)  # which it has not returned yet
    stopped = health.run("churn_monitor", datetime.now(UTC), {"skew": "failed"})
    for task in (running, stopped):
        health.fail(task, WHY)
    model = write_artifact(api.store, by=(by := Producer("stock_training", "second", "train")), properties={"a": 1})
    report = json.loads((BEFORE / "evaluation.json").read_text())
    report["candidate"]["fingerprint"] = model.fingerprint
    judged = write_artifact(
        api.store, "evaluation", {"evaluation.json": json.dumps(report)}, replace(by, task_id="rollout"),
        properties={name: report[name] for name in ("blessed", "reasons", "candidate", "champion", "model_name")},
    )  # fmt: skip
    evaluated = health.run("stock_training", datetime.now(UTC), rollout=judged, train=model)
    record = ModelRecord(ServedVersion.of(model, 3, "", 100)).after("deployed", 3, "a test", by=by_whom(evaluated))
    write_record(api.store, "stock", record)
    inputs = {"examples": [api.reference("examples", "examples").to_dict()]}
    code = UserCode("7" * 64, {"0/shop/model.py": b"import keras"})
    step = RunRecord("pages_training", "train", TRAIN_ENTRY, {}, inputs, {}, "0.1.0", "3.11.7", {"numpy": "1.26"}, "")
    write_step(api.store, key := cache_key({"number": "7"}), replace(step, code=code.fingerprint, code_paths=1), code)
    trained = write_training(api.store, 7, record=key)
    (failed,) = path_of(api.store.root).glob("_state/progress/fraud_training/*")
    return [
        {"dag_id": "pages_training", "training_id": trained.run_id, "other_run_id": trained.run_id},
        {"dag_id": "fraud_training", "run_id": name_in(failed.name), "model": "fraud", "task_id": "train"},
        {"dag_id": "eta_training", "run_id": running.run_id, "model": "eta", "task_id": "train"},
        {"dag_id": "churn_monitor", "run_id": stopped.run_id, "model": "churn", "task_id": "skew"},
        {"dag_id": "stock_training", "run_id": evaluated.run_id, "model": "stock", "task_id": "rollout",
         "kind": "evaluation", "version": "3"},
    ]  # fmt: skip


@pytest.fixture(scope="module")
def addresses(api: Api, run_dag: Any, airflow_settings: pytest.MonkeyPatch) -> Iterator[list[dict[str, str]]]:
    """Something of everything that routes show, and the parameters of paths that lead there."""
    store, root = api.store, path_of(api.store.root)
    paths = {*root.rglob("*")}
    evaluation = (BEFORE / "evaluation.json").read_text()
    notebook = {"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    training = {"params": {"lr": 1}, "epochs": [{"epoch": 1, "loss": 0.5}], "seconds": {"total": 1.0}}
    period = {"version": 1, "start": "2026-01-01T00:00:00+00:00", "end": "2026-01-08T00:00:00+00:00", "rows": 200}
    measured = {
        "model_name": MODEL, "problem": "binary", "metric": "auc", "label": "late", "as_of": period["end"], "notes": [],
        "periods": [{**period, "labelled": 20}], "labels": {"given": 150, "joined": 150},
        "versions": [{**period, "labelled": 150, "measured": 120, "figures": {"auc": [0.7, 0.6, 0.8]}}],
        "ages": [{"from_s": 0, "to_s": None, "rows": 200, "labelled": 150}],
    }  # fmt: skip
    made = {
        "evaluation": {"evaluation.json": evaluation},
        "performance": {"performance.json": json.dumps(measured)},
        "model": {"training.json": json.dumps(training)},
        "notebook": {"notebook.ipynb": json.dumps(notebook), "notebook.html": "<p>"},
    }
    facts = {"model_name": MODEL, "blessed": True, "reasons": ["x"], "password": "hunter2", "splits": ["eval"]}
    for kind, files in made.items():
        api.write(kind, files, properties=facts, metrics={"auc": 0.7})
    reference = api.reference("statistics", "statistics").to_dict()
    window = ["2026-01-05T00:00:00+00:00", "2026-01-12T00:00:00+00:00"]
    skew = run_dag("pages_skew", {"reference": reference, "window": {"seed": 2, "shift": 3, "window": window}})
    store.write_text(record_uri(store, MODEL), (BEFORE / "model_record.json").read_text())
    write_study(store, "pages", NAMES["study"], 30)
    rehearsal = write_rehearsal(store, small_rehearsal(MODEL, 1), Producer("pages_training", "first", "rehearse"))
    mine = [{"task_id": "validate", "kind": kind} for kind in (*made, "anomalies")]
    with answering(_serve) as address:
        port = int(address.rpartition(":")[2])
        yield [
            {"dag_id": "pages", "study": NAMES["study"]},
            {"task_id": "search"},
            *mine,
            {"task_id": "statistics", "kind": "statistics"},
            {"task_id": "schema", "kind": "schema"},
            {"dag_id": "pages_skew", "run_id": skew.run_id, "task_id": "drift", "kind": "skew"},
            {"dag_id": "pages_training"},
            {"dag_id": "pages_training", "rehearsal": f"1-{hashlib.sha256(rehearsal.encode()).hexdigest()[:16]}"},
            {"dag_id": "pages_monitoring"},
            *[{"dag_id": each} for each in ("churn_monitor", "price_training")],
            *_happened(api, airflow_settings, port),
        ]
    with create_session() as session:
        for dag_id in session.scalars(select(DagModel.dag_id).where(DagModel.fileloc == str(FILE))).all():
            delete_dag(dag_id, session=session)
    with create_session() as session:  # the tests of other modules count runs
        session.delete(session.query(DagRun).filter_by(dag_id="pages_skew", run_id=skew.run_id).one())
    for path in sorted({*root.rglob("*")} - paths, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@contextlib.contextmanager
def damaged(api: Api, pattern: str, how: Callable[[bytes], bytes] | None) -> Iterator[Collection[Path]]:
    """Damages files of the store, or removes them; yields them, and makes them whole again."""
    whole: dict[Path, bytes] = {}
    try:
        for path in path_of(api.store.root).rglob(pattern):
            if path.is_file() and path.name not in {MARKER, MANIFEST_NAME} - {pattern}:
                whole[path] = path.read_bytes()
                path.unlink() if how is None else path.write_bytes(how(whole[path]))
        yield whole
    finally:
        for path, content in whole.items():
            path.write_bytes(content)


@pytest.fixture(scope="module")
def shown(api: Api, addresses: list[dict[str, str]]) -> dict[str, str]:
    """The answers of all routes that show something of it, by path."""
    routes = [route for method, route in protected() if method == "GET" and not route.path.startswith("/tensorboard")]
    results = {}
    for route in routes:
        for names in addresses:
            mine = {name: quote(value, safe="") for name, value in names.items() if f"{{{name}" in route.path}
            path = _path(api, route, **mine)
            one = f"{'&' if '?' in path else '?'}study={NAMES['study']}" if "/studies/" in path else ""
            results[path + one] = None
    answers = {path: api.get(path) for path in [*results, SERVED]}
    assert not {path: each.text for path, each in answers.items() if each.status_code == 500}
    shown = {path: answer.text for path, answer in answers.items() if answer.status_code == 200}
    assert not [part for part in PARTS if not any(part in path for path in shown)], shown
    return shown


DAMAGES = [
    *(pytest.param(manifests, None, id=f"no {'manifests' if manifests else 'files'}") for manifests in (True, False)),
    *(pytest.param(True, _facts_changed(how), id=f"manifests with {name}") for name, how in VALUES.items()),
    *(pytest.param(True, TEXTS[name], id=f"manifests of {name}") for name in ("half of it", "a list")),
    *(pytest.param(False, _changed(how), id=f"files with {name}") for name, how in VALUES.items()),
    *(pytest.param(False, how, id=f"files of {name}") for name, how in TEXTS.items()),
]


LISTS = re.compile(r"/api/(pipelines|dags/\w+/(overview|schemas|validations|skew(/feature.*)?))")
"""Pages of many inputs, of which one that cannot be read leaves the others."""


def _files(manifests: bool) -> str:
    return MANIFEST_NAME if manifests else "*.json*"


@pytest.fixture(scope="module")
def readers(api: Api, shown: dict[str, str]) -> dict[bool, list[str]]:
    """The paths whose answers depend on manifests, and those that depend on other files."""
    results = {}
    for manifests in (True, False):
        with damaged(api, _files(manifests), TEXTS["a list"]):
            results[manifests] = [path for path, page in shown.items() if api.get(path).text != page]
    return results


@pytest.mark.parametrize(("manifests", "how"), DAMAGES)
def test_routes_answer_whatever_the_store_holds(
    api: Api, readers: dict[bool, list[str]], manifests: bool, how: Callable[[bytes], bytes] | None
) -> None:
    failed = {}
    with damaged(api, _files(manifests), how):
        for path in readers[manifests]:
            answer = api.get(path)
            if answer.status_code in {500, *([502] if LISTS.fullmatch(path) else [])} or (
                answer.status_code >= 400 and not answer.json()["detail"]
            ):
                failed[path] = answer.text[:300]
            assert "hunter2" not in answer.text, path
    assert failed == {}


CLOCKS = ("duration_s",)
"""Numbers that grow while something runs."""
_CLOCK = re.compile(r"\d\d:\d\d UTC")


def silent(
    api: Api, shown: Mapping[str, str], paths: Collection[str], is_named: Callable[[str], bool], user: str = "admin"
) -> dict[str, Any]:
    """Returns the answers that have less than before, by path, and do not name the cause where something is missing.

    A route may answer as before, since it does not need what is away or damaged; refuse, naming the cause; or leave
    something out, and name the cause in the same object or list.
    """
    results: dict[str, Any] = {}
    for path in (path for path in paths if "/files/" not in path):  # a download shows what is there
        answer, whole = api.get(path, user), shown[path]
        if answer.status_code == 200 and "json" in answer.headers["content-type"]:
            missing = _missing(json.loads(whole), answer.json(), is_named)
        else:
            alike = _CLOCK.sub("", answer.text) == _CLOCK.sub("", whole)
            missing = [] if alike or is_named(answer.text) else [answer.text[:200]]
        if missing or answer.status_code == 500:
            results[path] = answer.status_code, missing
    return results


def _missing(whole: Any, now: Any, is_named: Callable[[str], bool], place: str = "") -> list[str]:
    """Returns the places of values that became null, empty, shorter or other, without the cause beside them."""
    if whole == now or place.endswith(CLOCKS):
        return []
    if isinstance(now, dict | list) and any(map(is_named, _words(now))):
        return []
    if isinstance(whole, dict) and isinstance(now, dict):
        return [each for name in whole for each in _missing(whole[name], now.get(name), is_named, f"{place}.{name}")]
    if isinstance(whole, list) and isinstance(now, list) and len(whole) == len(now):
        pairs = enumerate(zip(whole, now, strict=True))
        return [each for number, (old, new) in pairs for each in _missing(old, new, is_named, f"{place}[{number}]")]
    return [f"{place}: {whole!r:.90} -> {now!r:.90}"]


def _words(value: dict[str, Any] | list[Any]) -> list[str]:
    """Returns the texts in an object and in its lists, or in a list and in its objects."""
    objects = [value] if isinstance(value, dict) else [each for each in value if isinstance(each, dict)]
    items = [item for each in objects for item in each.values()] + (value if isinstance(value, list) else [])
    items += [item for each in items if isinstance(each, list) for item in each]
    items += [item for each in objects for finding in each.get("health", ()) for item in finding.values()]
    return [each for each in items if isinstance(each, str)]


@pytest.mark.parametrize("place", ["renamed", "empty", "of others"])
def test_no_route_takes_a_store_that_is_away_for_an_empty_one(api: Api, shown: dict[str, str], place: str) -> None:
    root = path_of(api.store.root)
    with api.without(root):
        if place != "renamed":
            (root / "photos" if place == "of others" else root).mkdir(parents=True)
        assert silent(api, shown, shown, lambda text: "is away, or new" in text) == {}
        assert not root.exists() or not (root / MARKER).exists()
        shutil.rmtree(root, ignore_errors=True)


NAMED = ["*.curves.json", "_runs/**/*.json", "code/*", "page_rows.bin", "evaluation.json", "schema.pbtxt", "page.json*"]
NAMED += ["report.json", "anomalies.json", "performance.json", "training.json", "statistics.json", "notebook.*"]
"""Files that others name: without them, something is missing."""
NEVER = ("has not made an artifact", "has no frozen schema")
"""Words about an artifact that nothing but its manifest names."""
RECORDS = [MANIFEST_NAME, "_models/*", "_trainings/*/*", "_state/**/*.json*", "_frozen/**/*.json"]
HALVES = [*((name, "half of it") for name in (*RECORDS, *NAMED) if name != "schema.pbtxt")]  # which people may edit


@pytest.mark.parametrize(("pattern", "how"), [*HALVES, *((name, "none") for name in (MANIFEST_NAME, *NAMED))])
def test_no_route_takes_a_damaged_file_for_none(
    api: Api, shown: dict[str, str], readers: dict[bool, list[str]], pattern: str, how: str
) -> None:
    paths = {*readers[True], *readers[False]}
    with damaged(api, pattern, TEXTS.get(how)) as files:
        inside = [path.relative_to(path_of(api.store.root)) for path in files]
        names = {str(each) for path in inside for each in (path, *[*path.parents][:2]) if len(each.parts) > 1}
        names |= {path.stem for path in inside if path.parts[0] == "_runs"}
        if (pattern, how) == (MANIFEST_NAME, "none"):
            paths, names = {path for path in paths if "eta_training" not in path}, names | {*NEVER}
        assert names and silent(api, shown, paths, lambda text: any(name in text for name in names)) == {}


def test_no_route_takes_a_silent_server_for_one_without_models(
    api: Api, shown: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    for name, value in connections(path_of(api.store.root).parent, port).items():
        monkeypatch.setenv(name, value)
    assert silent(api, shown, shown, lambda text: f"127.0.0.1:{port}" in text) == {}
    (finding,) = api.get(SERVED).json()["eta_training"]["health"]
    assert finding["text"] == "the server does not answer" and finding["since"]


@pytest.mark.parametrize("user", ["taskless", "bare", "logless"])
def test_no_route_takes_a_missing_right_for_nothing(api: Api, shown: dict[str, str], user: str) -> None:
    assert silent(api, shown, shown, lambda text: "you may not" in text or "Forbidden" in text, user) == {}


def _promoted(content: bytes) -> bytes:
    """Returns the record of a model as after a promotion; no JSON as it is."""
    with contextlib.suppress(ValueError):
        record = json.loads(content)
        record["champion"]["version"] = 99
        return json.dumps(record).encode()
    return content


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(each)


def test_no_verdict_is_taken_for_one_of_the_version_that_serves(api: Api, shown: dict[str, str]) -> None:
    with damaged(api, "_models/*", _promoted):
        paths = [path for path, page in shown.items() if page.startswith(("{", "[")) and "/lineage" not in path]
        for path in paths:  # a lineage is of an artifact, whatever serves
            page = api.get(path).json()
            of_one = "/rehearsals/" in path and page["report"]["version"] == 1  # all of it is
            for each in _objects(page):
                named = of_one or {"version", "reference"} & each.keys()
                assert each.get("verdict") not in get_args(SkewVerdict) or named, path
                assert each.get("about") not in ("skew", "performance"), (path, each)
