"""Plants small faults in modules, one at a time, and counts those that tests catch.

``python scripts/mutate.py --count 20 --tests tests/test_leases.py airflow_hops/core/leases.py``. A fault is a
comparison turned around, a constant changed, or a statement left out. The same seed plants the same faults in the same
modules, so that two versions of the tests can be compared: ``--tests-at COMMIT`` takes the tests from a commit.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from replant_faults import ROOT, copy_checkout, git

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


class Mutation(NamedTuple):
    """A change of one place of a module: its lines are replaced by a text."""

    path: str
    line: int
    what: str
    text: str


def mutations(path: str) -> Iterator[Mutation]:
    """Yields all mutations of a module."""
    source = (ROOT / path).read_text()
    tree = ast.parse(source)
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    # Python 3.11: nodes in an f-string have no place of their own.
    formatted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in (each for each in ast.walk(tree) if id(each) not in formatted):
        for what, new in changes(node, texts):
            yield Mutation(path, node.lineno, what, replaced(source, node, new))  # type: ignore[attr-defined]


def changes(node: ast.AST, texts: set[int]) -> Iterator[tuple[str, ast.AST]]:
    """Yields what can take the place of a node."""
    if isinstance(node, ast.Compare) and type(node.ops[0]) in COMPARISONS:
        turned = COMPARISONS[type(node.ops[0])]()
        yield "comparison", ast.Compare(node.left, [turned, *node.ops[1:]], node.comparators)
    elif isinstance(node, ast.BoolOp):
        yield "and/or", ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
    elif isinstance(node, ast.Constant) and id(node) not in texts:
        if isinstance(node.value, bool):
            yield "constant", ast.Constant(not node.value)
        elif isinstance(node.value, int | float):
            yield "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.AugAssign | ast.Raise) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield "left out", ast.Pass()


def replaced(source: str, node: ast.AST, new: ast.AST) -> str:
    """Returns a source with another node in place of one."""
    lines = source.encode().splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    begin = starts[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = starts[node.end_lineno - 1] + node.end_col_offset  # type: ignore[attr-defined]
    text = ast.unparse(ast.fix_missing_locations(new))
    text = f"({text})" if isinstance(new, (ast.Compare, ast.BoolOp)) else text
    return (source.encode()[:begin] + text.encode() + source.encode()[end:]).decode()


def catches(folder: Path, tests: list[str]) -> bool:
    """Tells whether one of the tests fails, or does not end within ten minutes."""
    python, ml = (".venv-runtime", ["--confcutdir", "tests/ml"]) if tests[0].startswith("tests/ml") else (".venv", [])
    command = [
        folder / python / "bin/python",
        "-m",
        "pytest",
        *ml,
        *tests,
        "-q",
        "-x",
        "--no-header",
        "-p",
        "no:randomly",
    ]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    try:
        ended = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    except subprocess.TimeoutExpired:
        return True
    return ended.returncode != 0


def main() -> None:
    """Plants the faults, and prints a line for each that no test catches."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="+", help="modules to change")
    parser.add_argument("--tests", nargs="+", required=True, help="files of tests, or pytest's other arguments")
    parser.add_argument("--tests-at", metavar="COMMIT", help="take the folder tests from this commit")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    everything = [each for module in sorted(arguments.modules) for each in mutations(module)]
    drawn = random.Random(arguments.seed).sample(everything, min(arguments.count, len(everything)))
    with tempfile.TemporaryDirectory(prefix="mutate-") as place:
        folder = Path(place)
        copy_checkout(folder)
        if arguments.tests_at:
            archive = subprocess.run(
                ["git", "archive", arguments.tests_at, "tests"], cwd=ROOT, check=True, capture_output=True
            )
            git("clean", "-fdxq", "tests", cwd=folder)
            subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True)
        if catches(folder, arguments.tests):
            raise SystemExit("the tests fail without a fault")
        caught = 0
        for mutation in drawn:
            original = (folder / mutation.path).read_text()
            (folder / mutation.path).write_text(mutation.text)
            if catches(folder, arguments.tests):
                caught += 1
            else:
                print(f"{mutation.path}:{mutation.line}: {mutation.what}", flush=True)
            (folder / mutation.path).write_text(original)
    print(f"{caught} of {len(drawn)} caught")


if __name__ == "__main__":
    main()
