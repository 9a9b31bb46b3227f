"""Alert rules for Prometheus: they fire when they should, on metrics that exist."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import airflow
import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
RULES = REPOSITORY / "deploy" / "prometheus" / "alerts.yaml"


def test_rules_name_metrics_that_are_reported() -> None:
    (group,) = yaml.safe_load(RULES.read_text())["groups"]
    expressions = " ".join(rule["expr"] for rule in group["rules"])
    names = set(re.findall(r"(?<![\w:])(?:airflow|hops|:tensorflow)[\w:]+", expressions))
    sources = "".join(path.read_text() for path in (REPOSITORY / "airflow_hops").rglob("*.py"))
    templates = next(Path(airflow.__file__).parent.rglob("metrics_template.yaml")).read_text()
    reported = set(re.findall(r'"(hops_\w+|:tensorflow:[\w:]+)"', sources))
    reported |= {f"{name}_total" for name in reported}  # of counters
    reported |= {f"airflow_hops_{name}" for name in re.findall(r'gauge\("hops\.(\w+)"', sources)}
    reported |= {f"airflow_{name}" for name in re.findall(r'- name: "(\w+)"', templates)}
    assert len(names) == 9
    assert names <= reported


def test_rules_fire_when_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("there is no promtool in PATH (Debian: apt-get install prometheus)")
    ran = subprocess.run(
        [promtool, "test", "rules", "alerts.yaml"], cwd=Path(__file__).parent, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
