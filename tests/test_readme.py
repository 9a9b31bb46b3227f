"""The README's pipeline, run on events as a shop has them: it passes the gate of its own example."""

from __future__ import annotations

import gzip
import json
import random
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from served_models import Pipeline
from step_runner import REPOSITORY

PREPARE = """
def prepare(connection, tables):
    return tables["events"].project('customer, "at", visits, age, churned')
"""
MODEL = """
from sklearn.linear_model import LogisticRegression

def train(context):
    rows = context.table("train")
    return LogisticRegression().fit(rows.frame()[["visits", "age"]], rows.labels)
"""


def write_events(path: Path) -> None:
    """Forty days of customers, of whom those with few visits leave."""
    draw, lines = random.Random(1), ["customer,at,visits,age,churned"]
    for number in range(2000):
        time, visits = datetime(2026, 1, 1) + timedelta(minutes=28 * number), draw.uniform(0, 10)
        lines.append(
            f"c{number},{time.isoformat()}Z,{visits:.2f},{draw.uniform(18, 90):.1f},{int(draw.gauss(visits, 1) < 4)}"
        )
    path.write_bytes(gzip.compress("\n".join(lines).encode()))


@pytest.mark.runtime
@pytest.mark.scheduled(part="frameworks")  # a whole pipeline; the quick tests read it, and try mistakes in it
def test_pipeline_of_the_readme_passes_its_gate(
    pipeline: Pipeline, run_dag: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    extra = {**pipeline.server.services, "tracking_uri": pipeline.tracking_uri, "store": pipeline.store.root}
    connection = {"conn_type": "hops", "host": "127.0.0.1", "port": int(extra.pop("serving_port")), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps(connection))
    monkeypatch.syspath_prepend(str(tmp_path / "dags"))
    project = tmp_path / "dags" / "churn"
    project.mkdir(parents=True)
    (project / "prepare.py").write_text(PREPARE)
    (project / "model.py").write_text(MODEL)
    write_events(tmp_path / "events.csv.gz")
    (snippet, *_) = re.findall(r"```python\n(.*?)```", (REPOSITORY / "README.md").read_text(), re.DOTALL)
    source, replaced = re.subn("s3://lake/events/", f"{tmp_path}/", snippet)
    source, named = re.subn('^    "churn",', f'    "{pipeline.name}", dag_id="churn",', source, flags=re.MULTILINE)
    assert (replaced, named) == (1, 1)
    (tmp_path / "dags" / "pipeline.py").write_text(source)

    done = run_dag("churn", {}, str(tmp_path / "dags"))
    states = {ti.task_id: str(ti.state) for ti in done.get_task_instances()}
    assert len(states) == 9 and set(states.values()) == {"success"}, states
    evaluated = done.get_task_instance("evaluate").xcom_pull(task_ids="evaluate")
    assert evaluated["properties"]["blessed"] and evaluated["metrics"]["eval_auc"] > 0.9
    assert pipeline.record()["champion"]["version"] == 1
