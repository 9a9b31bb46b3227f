"""The documentation's snippets: those of Airflow's side run here, those of the ML side in the runtime environment.

A snippet below the line ``<!-- fragment -->`` is a part of something: it is only compiled.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import datetime
import json
import os
import re
import shlex
import subprocess
import textwrap
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import airflow.sdk
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from conftest import REPOSITORY

import airflow_hops.operators
from airflow_hops.cli.definition import get_hops_cli_commands

PAGES = [
    *sorted((REPOSITORY / "docs").rglob("*.md")),
    *sorted(REPOSITORY.glob("*/README.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "CONTRIBUTING.md",
]
ML_SIDE = re.compile(
    r"^(?:from|import) (?:airflow_hops\.(?:hops|runtime|serving|serving_api)|keras|tensorflow|horovod|pyarrow)\b",
    re.MULTILINE,
)
BLOCK = re.compile(r"^(<!-- fragment -->\n)?( *)```(\w+)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Snippet:
    name: str
    language: str
    source: str
    fragment: bool


def read_snippets() -> Iterator[Snippet]:
    for page in PAGES:
        text = page.read_text()
        for match in BLOCK.finditer(text):
            line = text.count("\n", 0, match.start()) + 1
            name = f"{page.relative_to(REPOSITORY)}:{line}"
            yield Snippet(name, match[3], textwrap.dedent(match[4]), bool(match[1]))


SNIPPETS = list(read_snippets())


def those(*languages: str, ml_side: bool | None = None) -> Any:
    """A parameter ``snippet`` of the whole snippets of some languages."""
    found = [snippet for snippet in SNIPPETS if snippet.language in languages and not snippet.fragment]
    if ml_side is not None:
        found = [snippet for snippet in found if bool(ML_SIDE.search(snippet.source)) == ml_side]
    return pytest.mark.parametrize("snippet", found, ids=lambda snippet: snippet.name)


def test_every_snippet_compiles_and_fragments_are_few() -> None:
    python = [snippet for snippet in SNIPPETS if snippet.language == "python"]
    for snippet in python:
        compile(snippet.source, snippet.name, "exec")
    assert len(python) > 50
    assert sum(snippet.fragment for snippet in python) < len(python) / 4


def free_names(source: str) -> set[str]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)]
    return {node.id for node in nodes if isinstance(node.ctx, ast.Load)} - set(dir(builtins))


@those("python", ml_side=False)
def test_a_snippet_of_a_dag_makes_its_tasks(snippet: Snippet) -> None:
    known = {
        **{name: getattr(airflow.sdk, name) for name in ("DAG", "Asset", "task")},
        **{name: getattr(airflow_hops.operators, name) for name in airflow_hops.operators.__all__},
        "timedelta": datetime.timedelta,
    }
    own_dag = "with DAG(" in snippet.source
    with nullcontext() if own_dag else airflow.sdk.DAG("snippet", schedule=None):
        others = {name: EmptyOperator(task_id=f"its_{name}") for name in free_names(snippet.source) - set(known)}
        exec(compile(snippet.source, snippet.name, "exec"), {**known, **others})


@pytest.fixture(scope="module")
def ml_errors(runtime_python: Path) -> dict[str, str]:
    """By snippet of the ML side, what was wrong with it."""
    sources = {
        snippet.name: snippet.source
        for snippet in SNIPPETS
        if snippet.language == "python" and not snippet.fragment and ML_SIDE.search(snippet.source)
    }
    checks = REPOSITORY / "tests" / "runtime_checks" / "snippet_checks.py"
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run(
        [str(runtime_python), str(checks)], input=json.dumps(sources), env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return dict(json.loads(result.stdout.splitlines()[-1]))


@pytest.mark.runtime
@those("python", ml_side=True)
def test_a_snippet_of_the_ml_side_trains_or_calls_what_there_is(snippet: Snippet, ml_errors: dict[str, str]) -> None:
    assert ml_errors[snippet.name] == ""


@those("json")
def test_json_is_json(snippet: Snippet) -> None:
    assert json.loads(snippet.source)


def commands_of(snippet: Snippet) -> Iterator[list[str]]:
    """The commands of a shell snippet, word by word."""
    text = snippet.source.replace("\\\n", " ")
    if snippet.language == "console":
        text = "\n".join(line.removeprefix("$ ") for line in text.splitlines() if line.startswith("$ "))
    yield from (shlex.split(line, comments=True) for line in split_commands(text))


def split_commands(text: str) -> Iterator[str]:
    """Lines, but for those within quotes."""
    begun = ""
    for line in text.splitlines():
        begun += f"{line}\n"
        try:
            shlex.split(begun, comments=True)
        except ValueError:
            continue
        yield begun
        begun = ""
    assert not begun, f"a quote is not closed: {begun}"


@those("bash", "console")
def test_a_command_exists_with_these_options_and_what_it_sends_is_json(snippet: Snippet) -> None:
    assert subprocess.run(["bash", "-n"], input=snippet.source.replace("$ ", ""), text=True).returncode == 0
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    parser = hops_parser()
    for words in commands_of(snippet):
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= targets
        elif words[:2] == ["airflow", "hops"]:
            parser.parse_args(words[2:])
        elif words[:1] == ["export"] and words[1].startswith("AIRFLOW_CONN_"):
            assert json.loads(words[1].partition("=")[2])["conn_type"]
        elif words[:1] == ["curl"] and "-d" in words and "$(" not in snippet.source:
            assert json.loads(words[words.index("-d") + 1])


def hops_parser() -> argparse.ArgumentParser:
    """Airflow's own parser of ``airflow hops …``."""
    from airflow.cli.cli_parser import _add_command

    parser = argparse.ArgumentParser(exit_on_error=False)
    (group,) = get_hops_cli_commands()
    commands = parser.add_subparsers(required=True)
    for command in group.subcommands:
        _add_command(commands, command)
    return parser
