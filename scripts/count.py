"""Counts the lines of Python: all, and code alone (no docstrings, comments or blank lines). ``make count`` runs it.

Last come the trunk and all extensions, with their classes, and comments per 100 lines of code.
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def count_code(source: str) -> int:
    """Returns the number of lines that hold code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and ast.get_docstring(
            node
        ):
            docstring = node.body[0]
            lines.difference_update(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


def count_comments(source: str) -> int:
    """Returns the number of comments."""
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(source).readline))


def main() -> int:
    """Prints the lines of each folder, two levels deep, and those of the package and the tests."""
    listed = subprocess.run(["git", "ls-files", "*.py"], check=True, capture_output=True, text=True).stdout.splitlines()
    lines: Counter[str] = Counter()
    code: Counter[str] = Counter()
    for name in listed:
        if not name.startswith(("airflow_hops/", "tests/")) or not Path(name).exists():
            continue
        source = Path(name).read_text()
        folders = Path(name).parent.parts
        for folder in {"/".join(folders[:depth]) for depth in (1, 2, 3)}:
            lines[folder] += source.count("\n")
            code[folder] += count_code(source)
    print(f"{'lines':>8} {'code':>8}")
    for folder in sorted(lines):
        print(f"{lines[folder]:8,} {code[folder]:8,}  {folder}")
    print(f"\n{'lines':>8} {'code':>8} {'classes':>8} {'comments':>8}")
    package = {Path(name) for name in listed if name.startswith("airflow_hops/")}
    extensions = {path for path in package if path.parts[1] == "extensions"}
    for title, paths in (("trunk", package - extensions), ("extensions", extensions), ("both", package)):
        sources = [path.read_text() for path in paths if path.exists()]
        of_code = sum(map(count_code, sources))
        classes = sum(isinstance(node, ast.ClassDef) for source in sources for node in ast.walk(ast.parse(source)))
        print(
            f"{sum(source.count(chr(10)) for source in sources):8,} {of_code:8,} {classes:8,} "
            f"{100 * sum(map(count_comments, sources)) / of_code:8.1f}  {title}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
