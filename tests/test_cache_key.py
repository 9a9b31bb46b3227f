"""The cache key: changes that make a step run again, and those that do not; through the hook, with real steps."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import StepFailed
from airflow_hops.core.steps.protocol import Output, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.runner.runtime import RuntimeHook
from airflow_hops.runner.user_code.fingerprints import user_code

pytestmark = pytest.mark.runtime

Run = Callable[..., bool]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    """User code: a package, a module of it that another module and a text are read by."""
    folder = tmp_path / "dags"
    (folder / "shop").mkdir(parents=True)
    (folder / "shop" / "__init__.py").write_text("")
    (folder / "shop" / "steps.py").write_text(
        "import currencies\nQUERY = 'query.sql'\n"
        "def run(context):\n    with context.output() as writer:\n        return writer.commit()\n"
    )
    (folder / "shop" / "query.sql").write_text("select 1")
    (folder / "currencies.py").write_text("from rates import EURO\n")
    (folder / "rates.py").write_text("EURO = 1\n")
    (folder / "unrelated.py").write_text("x = 1\n")
    return folder


@pytest.fixture
def cached(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the step in a DAG run of its own; whether its artifact came from the cache."""
    connection = {"conn_type": "hops", "extra": {"store": str(tmp_path / "store")}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    store, runs = ArtifactStore(str(tmp_path / "store")), iter(range(100))

    def run(**inputs: Artifact) -> bool:
        producer = Producer("shop", f"run-{next(runs)}", "step")
        spec = StepSpec(
            step="step",
            entry="shop.steps:run",
            inputs={role: (artifact,) for role, artifact in inputs.items()},
            output=Output(store.address(producer, "model"), "model"),
            producer=producer,
            code_paths=(str(code),),
        )
        result: Any = RuntimeHook().run(spec)
        return Artifact.from_dict(result.value).cached

    return run


def test_step_runs_again_after_a_code_change(cached: Run, code: Path) -> None:
    assert not cached()
    assert cached()
    (code / "unrelated.py").write_text("x = 2\n")
    (code / "shop" / "training.py").write_text("from shop import steps\n")
    (code / "shop" / "__pycache__").mkdir(exist_ok=True)
    (code / "shop" / "__pycache__" / "steps.cpython-399.pyc").write_bytes(b"bytecode")
    assert cached()
    for changed in ("shop/query.sql", "rates.py"):
        with (code / changed).open("a") as file:
            file.write("# changed\n")
        assert not cached(), changed
    assert cached()


def test_packaged_step_runs_again_after_a_code_change(cached: Run, code: Path) -> None:
    sources = code.rename(code.with_name("sources"))
    shutil.make_archive(str(code), "zip", sources)
    code.with_suffix(".zip").rename(code)
    assert [cached(), cached()] == [False, True]
    (sources / "rates.py").write_text("EURO = 2\n")
    shutil.make_archive(str(code), "zip", sources)
    code.with_suffix(".zip").rename(code)
    assert [cached(), cached()] == [False, True]


def test_scripts_notebooks_and_their_imports_change_the_cache_key(code: Path) -> None:
    def key(script: str) -> str:
        return user_code(
            StepSpec("s", "airflow_hops.ml.training.stage:run", {"script": script}, code_paths=(str(code),))
        ).fingerprint

    def write(name: str, output: str, source: str = "import currencies", tags: Sequence[str] = ()) -> None:
        if name.endswith("ipynb"):
            source = f"%matplotlib inline\n{source}\nfor each in []:\n    !ls"
        cell = {"cell_type": "code", "source": [source], "outputs": [output], "metadata": {"tags": tags}}
        (code / "shop" / name).write_text(json.dumps({"cells": [cell]}) if name.endswith("ipynb") else source)

    for script in ("train.py", "train.ipynb"):
        write(script, "1")
        first = key(f"shop/{script}")
        write(script, "2")
        assert key(f"shop/{script}") == first
        with (code / "rates.py").open("a") as file:
            file.write("# changed\n")
        second = key(f"shop/{script}")
        write(script, "2", "import currencies, json")
        assert len({first, second, key(f"shop/{script}")}) == 3
    untagged = key("shop/train.ipynb")
    write("train.ipynb", "2", "import currencies, json", tags=["parameters"])
    assert key("shop/train.ipynb") != untagged
    write("train.ipynb", "2", "files = !ls")  # what such a cell imports is not known
    assert key("shop/train.ipynb") != key("shop/train.ipynb")


def test_window_of_a_snapshot_changes_the_key_and_its_plan_does_not(cached: Run) -> None:
    def snapshot(window_end: str, state: str) -> Artifact:
        properties = {"window": ["2013-01-01", window_end], "plans": {"sales": state}}
        return Artifact("file:///s", "snapshot", "f" * 64, properties=properties)

    assert not cached(tables=snapshot("2013-04-01", "one"))
    assert cached(tables=snapshot("2013-04-01", "two"))
    assert not cached(tables=snapshot("2013-05-01", "two"))


def test_spark_properties_change_the_key() -> None:
    from airflow_hops.operators import PrepareOperator, TransformOperator

    def keys(conf: dict[str, str] | None) -> list[dict[str, str]]:
        hook = RuntimeHook()
        prepare = PrepareOperator(task_id="p", prepare="a:b", engine="spark", tables={}, label="l", conf=conf)
        transform = TransformOperator(task_id="t", preprocess="a:b", examples={}, statistics={}, schema={}, conf=conf)
        return [operator.step_cache_key_parts(hook) for operator in (prepare, transform)]

    for plain, ansi in zip(keys(None), keys({"spark.sql.ansi.enabled": "true"}), strict=True):
        assert plain != ansi
    assert keys(None) == keys({})


def test_steps_are_traced_with_their_phases(cached: Run, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    assert not cached() and cached()
    first, second = [s for s in spans.get_finished_spans() if s.name == "step.step"]
    phases = {s.name: s for s in spans.get_finished_spans() if s.parent and s.parent.span_id == first.context.span_id}
    assert list(phases) == ["start_up", "work"]
    begin, end = phases["start_up"].start_time, phases["work"].end_time
    assert first.start_time < begin < phases["work"].start_time < end <= first.end_time
    assert first.attributes["hops.artifact"].endswith("/shop/run-0/step/model"), first.attributes
    assert (first.attributes["hops.entry"], first.attributes["hops.cached"]) == ("shop.steps:run", False)
    assert second.attributes["hops.cached"] is True
    (code / "shop" / "steps.py").write_text("def run(context): raise ValueError('no rows')")
    with pytest.raises(StepFailed):
        cached()
    failed = spans.get_finished_spans()[-1]
    assert (failed.status.status_code, failed.events[0].name) == (trace.StatusCode.ERROR, "exception")
