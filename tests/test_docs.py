"""The pages say what the code does: arguments, fields and options; and the README's snippets run."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import textwrap
import tomllib
from pathlib import Path
from typing import Any

import airflow.sdk
import pendulum
import pytest
import yaml
from airflow.timetables.interval import CronDataIntervalTimetable
from named_in_docs import missing_names, missing_on
from snippets import operator_modules
from step_runner import REPOSITORY

from airflow_hops.core.profiles import BASE, CURRENT

DOCS = REPOSITORY / "docs"
OPERATORS = [
    getattr(module, name) for module in operator_modules() for name in module.__all__ if name.endswith("Operator")
]


def snippets(page: Path) -> list[str]:
    return [textwrap.dedent(text) for text in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)]


def test_every_operator_is_on_a_page_and_every_extension_has_one_or_a_section() -> None:
    pages = "".join(page.read_text() for folder in ("howto", "extensions") for page in (DOCS / folder).glob("*.md"))
    assert [operator.__name__ for operator in OPERATORS if operator.__name__ not in pages] == []
    extensions = {path.parent.name for path in (REPOSITORY / "airflow_hops" / "extensions").glob("*/__init__.py")}
    sections = re.findall(r"^## (.*)", (DOCS / "extensions" / "small.md").read_text(), re.MULTILINE)
    described = {path.stem for path in (DOCS / "extensions").glob("*.md")} - {"index", "small"}
    assert extensions == described | {section.lower().replace(" ", "_") for section in sections}


@pytest.mark.parametrize("operator", OPERATORS)
def test_an_operators_docstring_names_its_arguments_and_says_which_are_templated(operator: Any) -> None:
    reference = [DOCS / "reference" / "operators.md", *(DOCS / "extensions").glob("*.md")]
    assert any(f".. autoclass:: {operator.__name__}\n" in page.read_text() for page in reference)
    described = {
        name: text
        for each in operator.__mro__
        for name, text in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", inspect.getdoc(each) or "", re.MULTILINE)
    }
    for argument in set(inspect.signature(operator.__init__).parameters) - {"self", "kwargs"}:
        assert ("(templated)" in described[argument]) == (argument in operator.template_fields), argument


def test_pages_and_docstrings_name_what_exists() -> None:
    assert missing_names() == []


def test_missing_names_are_found(tmp_path: Path) -> None:
    text = """
A [page](gone.md), `tests/gone.py`, `make gone`, `airflow_hops.gone.Name`, `airflow_hops.operators.Gone`,
`airflow_hops/operators/<stage>.py`, `make test`, `airflow_hops.operators.TrainOperator`, `airflow_hops.stages`,
{py:class}`~airflow_hops.hops.BadInput`, [this](beside.md).

| marker | the test |
|---|---|
| `gone` | |
| `server` | |
"""
    (tmp_path / "beside.md").touch()
    names = ["gone.md", "tests/gone.py", "make gone", "airflow_hops.gone.Name", "airflow_hops.operators.Gone", "gone"]
    assert list(missing_on(tmp_path / "page.md", text)) == names


def test_readmes_links_lead_to_files_and_versions_of_profiles_are_the_pins() -> None:
    readme = (REPOSITORY / "README.md").read_text()
    urls = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["urls"]
    raw = urls["Repository"].replace("github.com", "raw.githubusercontent.com")
    targets = re.findall(r"\]\(([^)#]+)", readme)
    files = [re.sub(rf"^(?:{urls['Repository']}/(?:blob|tree)|{raw})/main/", "", target) for target in targets]
    assert [
        name for name in files if not name.startswith("https://img.shields.io/") and not (REPOSITORY / name).exists()
    ] == []
    profiles = (DOCS / "operate" / "profiles.md").read_text()
    base, current = (
        dict(re.findall(r"^([\w-]+)==(\S+)", (REPOSITORY / "requirements" / profile.pins).read_text(), re.MULTILINE))
        for profile in (BASE, CURRENT)
    )
    for names in ("tensorflow keras", "tensorflow-data-validation horovod", "pyspark", "mlflow"):
        cells = [", ".join(pins[name] for name in names.split()) for pins in (base, current)]
        assert re.search(rf"\| {re.escape(cells[0])}[^|]*\| {re.escape(cells[1])}", profiles), cells


def test_tested_minors_of_airflow_are_the_same_everywhere() -> None:
    from airflow_hops.cli.doctor import TESTED_AIRFLOW

    makefile, pyproject, installation = (
        (REPOSITORY / name).read_text() for name in ("Makefile", "pyproject.toml", "docs/start/installation.md")
    )
    assert f"AIRFLOW_MINORS := {' '.join(TESTED_AIRFLOW)}\n" in makefile
    assert f'"apache-airflow>={TESTED_AIRFLOW[0]},' in pyproject
    assert f"tested on Airflow {' and '.join(TESTED_AIRFLOW)} " in installation


def test_troubleshooting_quotes_messages_of_the_code() -> None:
    """Every part between the dots of a heading in code font."""
    texts = [
        node.value
        for path in (REPOSITORY / "airflow_hops").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    code = "\n".join(texts)
    page = (REPOSITORY / "docs" / "operate" / "troubleshooting.md").read_text()
    quoted = re.findall(r"^### `([^`]+)`", page, re.MULTILINE)
    assert len(quoted) > 20
    assert [
        part for text in quoted for part in re.split(r"\s*…\s*", text) if part.strip(" ,;)(") and part not in code
    ] == []


def test_workflows_and_hooks_run_existing_targets() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    workflow = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "tests.yml").read_text())
    entries = workflow["jobs"]["make"]["strategy"]["matrix"]["include"]
    assert {target for entry in entries for target in entry["targets"].split() if "=" not in target} <= targets
    assert {entry["python"] for entry in entries} == {"3.11", "3.12", "3.13"}
    release = yaml.safe_load((REPOSITORY / ".github" / "workflows" / "release.yml").read_text())
    runs = [step["run"] for step in release["jobs"]["release"]["steps"] if "run" in step]
    assert {run.removeprefix("make ") for run in runs if run.startswith("make ")} == {"release-check"} <= targets
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    lint = subprocess.run(["make", "--dry-run", "lint"], cwd=REPOSITORY, capture_output=True, text=True).stdout
    for hook in hooks:
        command, *options = hook["entry"].split()
        assert f"{command} {' '.join(options[:1])}".strip() in lint, hook["entry"]
    for form in (REPOSITORY / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        assert yaml.safe_load(form.read_text()), form


def test_pipelines_of_the_readme_and_by_hand_are_dags(tmp_path: Path) -> None:
    from airflow.dag_processing.dagbag import DagBag

    (pipeline,) = snippets(REPOSITORY / "README.md")
    assert len(pipeline.splitlines()) <= 12
    (tmp_path / "churn_dag.py").write_text(pipeline)
    (tmp_path / "by_hand.py").write_text(snippets(DOCS / "howto" / "training_loop.md")[-1])
    bag = DagBag(tmp_path)
    assert not bag.import_errors
    dag = bag.dags["churn"]
    assert {*bag.dags["churn_training"].task_ids, "transform"} == set(dag.task_ids)
    assert set(bag.dags["churn_monitoring"].task_ids) == {"skew", "request_retraining"}
    # Airflow's scheduler has a class of its own of the same name.
    assert isinstance(dag.timetable, airflow.sdk.CronDataIntervalTimetable)
    timetable = CronDataIntervalTimetable(dag.timetable.expression, timezone=dag.timetable.timezone)
    interval = timetable.infer_manual_data_interval(run_after=pendulum.datetime(2026, 3, 4))
    assert (interval.end - interval.start).days == 7
