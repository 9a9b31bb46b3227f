"""Every route that shows something answers, whatever the files of the store hold: with it, or with what is wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from world import path_of

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Producer
from airflow_hops.core.models.model_record import record_uri
from tests.extensions.experiments.written_studies import write_study
from tests.extensions.replay.written_backtests import made_up_report, write_backtest
from web.conftest import Api
from web.test_access import NAMES, _path, protected

pytestmark = pytest.mark.runtime

MODEL = NAMES["model"]
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
        lines = content.splitlines()
        try:
            values = [json.loads(content)]
        except ValueError:
            values = [json.loads(line) for line in lines]
        return b"\n".join(json.dumps(change(value)).encode() for value in values)

    return change_lines


def _facts_changed(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    def change_facts(content: bytes) -> bytes:
        value = json.loads(content)
        retained = {name: value.pop(name) for name in KEPT}
        return json.dumps({**change(value), **retained}).encode()

    return change_facts


@pytest.fixture(scope="module")
def addresses(api: Api, run_dag: Any) -> Iterator[list[dict[str, str]]]:
    """Something of everything that routes show, and the parameters of paths that lead there."""
    store, run_id = api.store, api.pages.run_id
    root = Path(store.root.removeprefix("file://"))
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
    uri = store.address(Producer("pages", run_id, "statistics"), "statistics")
    reference = store.manifest(uri).reference(uri).to_dict()
    window = ["2026-01-05T00:00:00+00:00", "2026-01-12T00:00:00+00:00"]
    skew = run_dag("pages_skew", {"reference": reference, "window": {"seed": 2, "shift": 3, "window": window}})
    store.write_text(record_uri(store, MODEL), (BEFORE / "model_record.json").read_text())
    write_study(store, "pages", NAMES["study"], 30)
    write_backtest(store, NAMES["backtest"], made_up_report("pages_training", MODEL, weeks=9))
    progress = {"try_number": 1, "began_at": 1.0, "points": [{"at": 1.0, "fraction": 0.5, "text": "x", "metrics": {}}]}
    for task_id in ("validate", "examples"):
        uri = store.internal("_state", "progress", "pages", run_id, task_id)
        store.write_text(f"{uri}.json", json.dumps(progress))
    mine = [{"task_id": "validate", "kind": kind} for kind in (*made, "anomalies")]
    yield [
        {"dag_id": "pages", "study": NAMES["study"]},
        {"task_id": "search"},
        *mine,
        {"task_id": "statistics", "kind": "statistics"},
        {"task_id": "schema", "kind": "schema"},
        {"dag_id": "pages_skew", "run_id": skew.run_id, "task_id": "drift", "kind": "skew"},
        {"dag_id": "pages_training"},
        {"dag_id": "pages_monitoring"},
        {"dag_id": "pages_search"},
    ]
    with create_session() as session:  # the tests of other modules count runs
        session.delete(session.query(DagRun).filter_by(dag_id="pages_skew", run_id=skew.run_id).one())
    for path in sorted({*root.rglob("*")} - paths, reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


@contextlib.contextmanager
def damaged(api: Api, manifests: bool, how: Callable[[bytes], bytes] | None) -> Iterator[None]:
    """Damages all files of the store, or removes them: the manifests or the others; they are whole again afterwards."""
    whole: dict[Path, bytes] = {}
    try:
        for path in Path(api.store.root.removeprefix("file://")).rglob("*.json*"):
            if path.is_file() and (path.name == MANIFEST_NAME) == manifests:
                whole[path] = path.read_bytes()
                path.unlink() if how is None else path.write_bytes(how(whole[path]))
        yield
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
            mine = {name: str(value) for name, value in names.items() if f"{{{name}" in route.path}
            path = _path(api, route, **mine)
            one = f"{'&' if '?' in path else '?'}study={NAMES['study']}" if "/studies/" in path else ""
            results[path + one] = None
    answers = {path: api.get(path) for path in results}
    assert not {path: each.text for path, each in answers.items() if each.status_code == 500}
    return {path: answer.text for path, answer in answers.items() if answer.status_code == 200}


DAMAGES = [
    *(pytest.param(manifests, None, id=f"no {'manifests' if manifests else 'files'}") for manifests in (True, False)),
    *(pytest.param(True, _facts_changed(how), id=f"manifests with {name}") for name, how in VALUES.items()),
    *(pytest.param(True, TEXTS[name], id=f"manifests of {name}") for name in ("half of it", "a list")),
    *(pytest.param(False, _changed(how), id=f"files with {name}") for name, how in VALUES.items()),
    *(pytest.param(False, how, id=f"files of {name}") for name, how in TEXTS.items()),
]


@pytest.fixture(scope="module")
def readers(api: Api, shown: dict[str, str]) -> dict[bool, list[str]]:
    """The paths whose answers depend on manifests, and those that depend on other files."""
    results = {}
    for manifests in (True, False):
        with damaged(api, manifests, TEXTS["a list"]):
            results[manifests] = [path for path, page in shown.items() if api.get(path).text != page]
    return results


@pytest.mark.parametrize(("manifests", "how"), DAMAGES)
def test_routes_answer_whatever_the_store_holds(
    api: Api, readers: dict[bool, list[str]], manifests: bool, how: Callable[[bytes], bytes] | None
) -> None:
    failed = {}
    with damaged(api, manifests, how):
        for path in readers[manifests]:
            answer = api.get(path)
            if answer.status_code == 500 or (answer.status_code >= 400 and not answer.json()["detail"]):
                failed[path] = answer.text[:300]
            assert "hunter2" not in answer.text, path
    assert failed == {}


@pytest.mark.parametrize("place", ["renamed", "empty"])
def test_no_route_takes_a_store_that_is_away_for_an_empty_one(api: Api, shown: dict[str, str], place: str) -> None:
    """An answer is that of before, as it needs no store, or says that the store is away."""
    root = path_of(api.store.root)
    with api.without(root):
        if place == "empty":
            root.mkdir()
        answers = {path: api.get(path).text for path in shown}
        if place == "empty":
            root.rmdir()
    away = [path for path, answer in answers.items() if "is away, or new" in answer]
    silent = {
        path: [answer[:200], shown[path][:200]]
        for path, answer in answers.items()
        if path not in away and answer != shown[path]
    }
    assert silent == {}
    assert len(away) > 20


@pytest.mark.parametrize(
    "part",
    ["evaluation", "performance", "studies/search", "backtests/", "skew", "card", "anomalies", "lineage"],
)
def test_routes_show_what_the_store_holds(shown: dict[str, str], part: str) -> None:
    assert [path for path in shown if part in path], shown
