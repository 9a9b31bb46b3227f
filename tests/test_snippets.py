"""The documentation's snippets of Airflow's side; ``tests/ml/test_snippets.py`` has those of the ML side."""

from __future__ import annotations

import argparse
import ast
import builtins
import datetime
import doctest
import functools
import json
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext

import airflow.sdk
from airflow.providers.standard.operators.empty import EmptyOperator
from snippets import (
    COMMAND,
    REPOSITORY,
    SNIPPETS,
    Snippet,
    examples,
    operator_modules,
    public_names,
    run_example,
    those,
)

from airflow_hops.cli.definition import get_hops_cli_commands


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
    names = free_names(snippet.source)
    known = {
        **{name: getattr(airflow.sdk, name) for name in ("DAG", "Asset", "task")},
        **{name: getattr(module, name) for module in operator_modules() for name in names & {*module.__all__}},
        "timedelta": datetime.timedelta,
    }
    own_dag = re.search(r"with DAG\(|training_loop\(", snippet.source)
    with nullcontext() if own_dag else airflow.sdk.DAG("snippet", schedule=None):
        others = {name: EmptyOperator(task_id=f"its_{name}") for name in names - set(known)}
        exec(compile(snippet.source, snippet.name, "exec"), {**known, **others})


@those("json")
def test_json_snippets_are_valid(snippet: Snippet) -> None:
    assert json.loads(snippet.source)


def commands_in(snippet: Snippet) -> str:
    """A shell snippet without what its commands print."""
    text = "\n".join(COMMAND.findall(snippet.source)) if snippet.language == "console" else snippet.source
    return text.replace("\\\n", " ")


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
def test_documented_commands_and_requests_are_valid(snippet: Snippet) -> None:
    assert subprocess.run(["bash", "-n"], input=commands_in(snippet), text=True).returncode == 0
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    parser = hops_parser()
    for words in (shlex.split(line, comments=True) for line in split_commands(commands_in(snippet))):
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= targets
        elif words[:2] == ["airflow", "hops"]:
            parser.parse_args(words[2:])
        elif words[:1] == ["export"] and words[1].startswith("AIRFLOW_CONN_"):
            assert json.loads(words[1].partition("=")[2])["conn_type"]
        elif words[:1] == ["curl"] and "-d" in words and "$(" not in snippet.source:
            assert json.loads(words[words.index("-d") + 1])


@functools.cache
def hops_parser() -> argparse.ArgumentParser:
    """Airflow's own parser of ``airflow hops …``."""
    from airflow.cli.cli_parser import _add_command

    parser = argparse.ArgumentParser(exit_on_error=False)
    (group,) = get_hops_cli_commands()
    commands = parser.add_subparsers(required=True)
    for command in group.subcommands:
        _add_command(commands, command)
    return parser


@examples(ml_side=False)
def test_an_example_in_a_docstring_prints_what_it_says(example: doctest.DocTest) -> None:
    run_example(example)


def described(source: str) -> set[str]:
    """Returns the classes and functions of a module whose docstrings have examples, and the words of these."""
    nodes = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
    texts = {node.name: ast.get_docstring(node) or "" for node in nodes}
    lines = re.findall(r"^ *>>> (.*)", "\n".join(texts.values()), re.MULTILINE)
    return {name for name, text in texts.items() if ">>> " in text} | set(re.findall(r"\w+", " ".join(lines)))


def test_each_public_name_has_an_example_that_runs() -> None:
    run = [snippet.source for snippet in SNIPPETS if snippet.language == "python" and not snippet.fragment]
    programs = [path for folder in ("dags", "demo") for path in (REPOSITORY / folder).rglob("*.py")]
    run += [path.read_text() for path in (*programs, REPOSITORY / "docs/start/tutorial.md")]
    known = set(re.findall(r"\w+", " ".join(run)))
    for path in (REPOSITORY / "airflow_hops").rglob("*.py"):
        known |= described(path.read_text()) if ">>> " in path.read_text() else set()
    assert sorted(public_names().keys() - known) == []
