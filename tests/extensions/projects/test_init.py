"""``airflow hops init``: what it writes for a file, whatever its columns are called, and that it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG
from hypothesis import given, settings
from hypothesis import strategies as st
from served_models import Pipeline

from airflow_hops.core.sources.sources import Source
from airflow_hops.extensions.projects.cli.init import report
from airflow_hops.extensions.projects.cli.project import project_files
from airflow_hops.extensions.projects.core.table_columns import ColumnDescription, TableDescription
from airflow_hops.operators import IngestOperator, PrepareOperator, SkewOperator
from tests.extensions.projects.hostile_rows import hostile_csv

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
HOSTILE = ["a b", 'Größe in "cm"', "it's\\n", "new\nline", '"""', "${name}", "$", "{x} %s", "class", "\u202eevil", "🦆"]
DAY = datetime(2026, 1, 1, tzinfo=UTC)
HOSTILE += ["{{ 1 + 1 }}", "{{ conn.none.password }}", "{% if %}", "{#", "ends\n", "\x1b[31mred"]


def table(names: list[str], **told: Any) -> TableDescription:
    """A table whose columns of these names have every role, in turn; the first is the label."""
    roles = ["label", "key", "time", "weight", *["number", "category"] * len(names)]
    columns = [ColumnDescription(name, "text", 0, "x", role) for name, role in zip(names, roles, strict=False)]  # type: ignore[arg-type]
    values = {
        "problem": "binary",
        "classes": names[:2],
        "minimum": {"auc": 0.6},
        "request": {},
        "format": "csv",
        **told,
    }
    return TableDescription(rows=100, whole=True, columns=columns, **values)


def load(sources: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns the definitions of ``features.py``, and the tasks of both DAGs by id."""
    from airflow.dag_processing.dagbag import DagBag

    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "rows")
        project.mkdir()
        for name, source in sources.items():
            (project / name).write_text(source)
        monkeypatch.syspath_prepend(folder)
        bag = DagBag(project)
        features = vars(sys.modules.pop("rows.features"))
        del sys.modules["rows"]
    assert not bag.import_errors and bag.dags.keys() - {"rows_scoring"} == {"rows_training", "rows_monitoring"}
    scored = {
        f"rows: {task_id}": task
        for task_id, task in bag.dags.pop("rows_scoring", DAG("none", schedule=None)).task_dict.items()
    }
    return features, {
        **{task_id: task for dag in bag.dags.values() for task_id, task in dag.task_dict.items()},
        **scored,
    }


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    st.lists(NAMES | st.sampled_from(HOSTILE), min_size=5, max_size=12, unique=True),
    st.text(st.characters(exclude_categories=["Cs"])).map("/data/{}".format) | st.just("/data/{{ 1 + 1 }}.csv"),
    st.sampled_from([",", ";", "\t"]),
    st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=2),
    st.booleans(),
)
def test_a_project_is_python_whatever_the_columns_are_called(
    names: list[str], uri: str, delimiter: str, texts: list[str], is_batch: bool
) -> None:
    spark = len({name.lower() for name in names}) < len(names)
    described = table(
        names, delimiter=delimiter, null_values=("", "NA", texts[0]), units=texts[1:], quote="'", escape="\\"
    )
    with pytest.MonkeyPatch.context() as patch:
        features, tasks = load(project_files("rows", uri, "latin-1", described, spark=spark, is_batch=is_batch), patch)
    assert tasks["prepare"].engine == ("spark" if spark else "duckdb")
    assert features["NUMBERS"] == described.named("number")
    assert features["CATEGORIES"] == described.named("category")
    ingest, prepare, skew = tasks["ingest"], tasks["prepare"], tasks["skew"]
    assert isinstance(ingest, IngestOperator) and isinstance(prepare, PrepareOperator)
    assert isinstance(skew, SkewOperator) and skew.min_rows == 100 and skew.own_windows
    ingest.render_template_fields({})
    source = Source.from_value("rows", ingest.sources["rows"])
    assert (source.uri, source.delimiter, source.encoding) == (uri, delimiter, "latin-1")
    assert (source.quote, source.escape) == ("'", "\\")
    assert set(source.columns or ()) == set(names) and set(source.schema) == set(names) - {names[2]}
    assert source.null_values == ("", "NA", texts[0]) and source.units == (texts[1],)
    columns = prepare.label_column, prepare.key, prepare.time, prepare.weight
    assert (*columns, prepare.classes) == (*names[:4], names[:2])
    assert ("rows: score" in tasks) == is_batch
    if is_batch:
        run = SimpleNamespace(partition_key=None, data_interval_start=DAY, data_interval_end=DAY + timedelta(1))
        tasks["rows: ingest"].render_template_fields({"dag_run": run})
        rows = Source.from_value("rows", tasks["rows: ingest"].sources["rows"])
        assert (rows.uri, rows.time_column, set(rows.columns or ())) == (uri, names[2], set(names[1:]))
        assert set(rows.schema) == set(source.schema) - {names[0]}
        assert tasks["rows: score"].columns == names[1:3] and tasks["skew"].hops_conn_id == "hops_batch"


def test_often_missing_label_raises_max_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = [ColumnDescription("y", "integer", 22, "1", "label"), ColumnDescription("x", "float", 0, "1.0", "number")]
    result = TableDescription(
        100, True, columns, "multiclass", ["1", "2", "3"], {"accuracy": 0.444, "worst_auc": 0.6}, {"x": 1.0},
        "parquet",
    )  # fmt: skip
    _, tasks = load(project_files("rows", "s3://rows.parquet", "utf8", result), monkeypatch)
    assert tasks["prepare"].max_rejected == pytest.approx(0.3)
    assert tasks["evaluate"].minimum == {"accuracy": 0.444, "worst_auc": 0.6}
    assert tasks["prepare"].newest is None


@pytest.mark.parametrize("newest", [timedelta(days=3), timedelta(minutes=90), timedelta(days=1, minutes=1)])
def test_project_splits_newest_rows_and_freezes_schema_at_deployment(
    newest: timedelta, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = table(["y", "k", "t", "w", "x"], newest_s=int(newest.total_seconds()))
    _, tasks = load(project_files("rows", "/rows.csv", "utf8", described), monkeypatch)
    assert tasks["prepare"].newest == newest
    assert tasks["schema"].freeze_at == "deployment"


def test_columns_of_the_file_and_features_are_separate_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = project_files("rows", "/rows.csv", "utf8", table(["y", "k", "t", "w", "x", "c"]))
    sources["features.py"] = sources["features.py"].replace('NUMBERS = ["x"]', 'NUMBERS = ["ratio"]')
    features, tasks = load(sources, monkeypatch)
    assert features["NUMBERS"] == ["ratio"]
    source = Source.from_value("rows", tasks["ingest"].sources["rows"])
    assert set(source.columns or ()) == {"y", "k", "t", "w", "x", "c"}
    assert source.schema == {"y": "string", "k": "string", "w": "float64", "x": "float64", "c": "string"}


def test_report_has_one_line_per_column_and_a_valid_request() -> None:
    result = table(HOSTILE[::-1], notes=["few"], request=dict.fromkeys(HOSTILE, "it's"), positive="it's $(so)")
    lines = list(
        report("rows", "rows.csv", result, Path("/dags/rows"), {"serving_host": "h", "serving_rest_port": "1"})
    )
    assert len([line for line in lines if " category" in line or " number" in line]) == len(HOSTILE) - 4
    assert all(line.isprintable() for line in lines)
    assert "new\\nline" in "\n".join(lines) and "note: few" in lines
    assert len([line for line in lines if "the probability that " in line and " is it's $(so)" in line]) == 2
    (curl,) = (line for line in lines if line.strip().startswith("curl"))
    shown = subprocess.run(["bash", "-c", curl.replace("curl -d", "printf %s", 1)], capture_output=True, text=True)
    body, _, url = shown.stdout.rpartition("http://")
    assert json.loads(body) == {"instances": [dict.fromkeys(HOSTILE, "it's")]} and url == "h:1/v1/models/rows:predict"


def test_project_that_scores_tables_names_no_server() -> None:
    columns = [ColumnDescription("y", "integer", 0, "1", "label"), ColumnDescription("x", "float", 0, "1.0", "number")]
    described = TableDescription(100, True, columns, "binary", ["0", "1"], {}, {"x": 1.0}, "csv")
    sources = project_files("rows", "/rows.csv", "utf8", described, is_batch=True)
    assert '"score": {"shadow": True}' in sources["training.py"], "without a key"
    assert not any(word in source for source in sources.values() for word in ("client", "request", "hops serve"))
    text = "\n".join(report("rows", "rows.csv", described, Path("/dags/rows"), {}))
    assert "airflow dags trigger rows_scoring" in text and "curl" not in text and "serve" not in text


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("class", "expected a Python identifier"),
        ("my-model", "expected a Python identifier"),
        ("../up", "expected a Python identifier"),
        ("größe", "expected a Python identifier"),
        ("json", "module installed with Airflow"),
        ("taken", "already exists"),
    ],
)
def test_invalid_project_name_is_refused(hops: Callable[..., Any], tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").touch()
    code, _, errors = hops("init", name, "--from", "rows.csv", "--label", "y", "--output", str(tmp_path))
    assert code == 1 and words in errors
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.runtime
@pytest.mark.parametrize(
    ("name", "label", "words"),
    [
        ("rows", "none", "--label is 'none', which is not a column; there are 'x', 'y'"),
        ("sklearn", "y", "name of a module in the runtime environment"),
    ],
)
def test_unusable_file_writes_nothing(
    hops: Callable[..., Any], tmp_path: Path, name: str, label: str, words: str
) -> None:
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n")
    dags = tmp_path / "dags"
    code, output, errors = hops("init", name, "--from", str(tmp_path / "rows.csv"), "--label", label, "-o", str(dags))
    assert code == 1 and words in errors and not output and "Traceback" not in errors
    assert not dags.exists()


@pytest.mark.runtime
@pytest.mark.scheduled(part="frameworks")  # a whole training; the project's own tests run for the same file every time
def test_file_with_any_columns_becomes_a_served_model(
    hops: Callable[..., Any],
    pipeline: Pipeline,
    run_dag: Callable[..., Any],
    runtime_python: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    extra = {**pipeline.server.services, "tracking_uri": pipeline.tracking_uri, "store": pipeline.store.root}
    connection = {"conn_type": "hops", "host": "127.0.0.1", "port": int(extra.pop("serving_port")), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    monkeypatch.delenv("AIRFLOW_CONN_SPARK_DEFAULT", raising=False)
    hostile_csv(tmp_path / "rows.csv")
    code, output, errors = hops(
        "init", "prices", "--from", str(tmp_path / "rows.csv"), "--label", '"price"', "-o", str(tmp_path / "dags")
    )
    assert code == 0, errors
    assert '"price": regression' in output and "the first column of times" in output
    monkeypatch.syspath_prepend(str(tmp_path / "dags"))

    # A person derives a column from two that have become no features.
    project = tmp_path / "dags" / "prices"
    replace_in(project / "features.py", 'NUMBERS = ["Größe in \\"cm\\""', 'NUMBERS = ["half size"')
    derived = '''rows = rows.project('*, "Größe in ""cm""" / 2 AS "half size"')\n'''
    replace_in(project / "prepare.py", "    returned", f"    {derived}    returned")
    tests = [str(runtime_python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(project)]
    ran = subprocess.run(tests, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ""}, cwd=tmp_path)
    assert "2 passed" in ran.stdout, ran.stdout + ran.stderr

    done = run_dag("prices_training", {}, str(tmp_path / "dags"))
    states = {ti.task_id: str(ti.state) for ti in done.get_task_instances()}
    assert set(states.values()) == {"success"}, states
    (curl,) = (line for line in output.splitlines() if line.strip().startswith("curl"))
    curl = curl.replace(json.dumps('Größe in "cm"'), '"half size"').replace("curl", "curl -sS", 1)
    answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True)
    (price,) = json.loads(answer.stdout)["predictions"]
    assert 700 < price < 800  # the linear model that was chosen goes on beyond the halves that it has seen
    evaluated = done.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")["metrics"]
    assert evaluated["eval_r2"] > 0.9 and evaluated["newest_r2"] > 0.8


def replace_in(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, text
    path.write_text(text.replace(old, new))
