"""Counts the lines of Python: all, and code alone (no docstrings, comments or blank lines). ``make count`` runs it.

Last come the sizes that ``contribute/size.md`` limits; ``count.py check``, of ``make lint``, fails if
one is above its limit.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
OPERATOR = re.compile("(Operator|Sensor)$")
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_code(source: str) -> int:
    """Returns the number of lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - docstring_lines(source))


def docstring_lines(source: str) -> set[int]:
    """Returns the numbers of the lines that hold docstrings."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node):
            docstring = node.body[0]
            lines.update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return lines


def count_lines(paths: Iterable[Path]) -> int:
    """Returns the number of all lines of the files."""
    return sum(path.read_text().count("\n") for path in paths)


def count_arguments(paths: Iterable[Path]) -> int:
    """Returns the number of arguments that the operators and sensors in the files add to those of their bases."""
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text())))
    operators = [node for node in nodes if isinstance(node, ast.ClassDef) and OPERATOR.search(node.name)]
    constructors = [
        node.args
        for operator in operators
        for node in operator.body
        if isinstance(node, ast.FunctionDef) and node.name == "__init__"
    ]
    return sum(len(arguments.kwonlyargs) + len(arguments.args[1:]) for arguments in constructors)


def files(*patterns: str) -> list[Path]:
    """Returns the files of the repository whose names match a pattern of git."""
    command = ["git", "-C", str(REPOSITORY), "ls-files", *patterns]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [path for path in (REPOSITORY / name for name in listed) if path.is_file()]


def sizes() -> dict[str, int]:
    """Returns the sizes by their names in ``contribute/size.md``."""
    package = files("airflow_hops/*.py")
    return {
        "code of the package": sum(count_code(path.read_text()) for path in package),
        "docstrings of the package": sum(len(docstring_lines(path.read_text())) for path in package),
        "modules": len(package),
        "arguments of operators": count_arguments(package),
        "lines of `ui/src`": count_lines(files("ui/src/*")),
        "lines of tests": count_lines(files("tests/*.py")),
    }


def limits() -> dict[str, int]:
    """Returns the limits of ``contribute/size.md`` by their names."""
    text = (REPOSITORY / "contribute/size.md").read_text()
    return {
        name: int(limit.replace(",", "")) for name, limit in re.findall(r"^\| (.+?) \| ([\d,]+) \|", text, re.MULTILINE)
    }


def count_folders() -> None:
    """Prints the lines of each folder, two levels deep."""
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for path in files("airflow_hops/*.py", "tests/*.py"):
        source, folders = path.read_text(), path.relative_to(REPOSITORY).parent.parts
        for folder in {"/".join(folders[:depth]) for depth in (1, 2, 3)}:
            lines[folder] += source.count("\n")
            code[folder] += count_code(source)
    print(f"{'lines':>8} {'code':>8}")
    for folder in sorted(lines):
        print(f"{lines[folder]:8,} {code[folder]:8,}  {folder}")
    print()


def main(check: bool) -> int:
    """Prints the sizes; returns 1 if one is to be checked and is above its limit."""
    if not check:
        count_folders()
    now, most = sizes(), limits()
    print(f"{'now':>8} {'limit':>8}")
    for name, size in now.items():
        print(f"{size:8,} {most[name]:8,}  {name}")
    above = [name for name, size in now.items() if size > most[name]]
    if above:
        print(f"above the limit: {', '.join(above)}; delete lines, or raise it in contribute/size.md and say why there")
    return int(check and bool(above))


if __name__ == "__main__":
    sys.exit(main(check="check" in sys.argv[1:]))
