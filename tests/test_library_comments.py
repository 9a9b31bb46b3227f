"""Comments that work around a library name its version: with another pin, they are read again.

Their form is ``# PyArrow 10.0 (apache/arrow#31374): reads February 31 as March 3.``: the library with the version in
which it was seen, and its issue if there is one.
"""

from __future__ import annotations

import re
from collections import defaultdict

from step_runner import REPOSITORY

PACKAGES = {
    "airflow": "apache-airflow",
    "beam": "apache-beam",
    "spark": "pyspark",
    "tfdv": "tensorflow-data-validation",
}
"""Packages of libraries that have another name."""
COMMENT = re.compile(r"# ([A-Za-z][\w-]+) (\d+\.\d+)(?: \(([^()]+)\))?: ")


def versions() -> dict[str, set[str]]:
    """Returns the minor versions of each package that the pins and the pages name."""
    pinned = defaultdict(set)
    for path in [*(REPOSITORY / "requirements").glob("*.txt"), *(REPOSITORY / "docs").rglob("*.md")]:
        for name, version in re.findall(r"([\w-]+)(?:\[[\w,]+\])?==(\d+\.\d+)", path.read_text()):
            pinned[name.lower()].add(version)
    return pinned


def test_comments_on_libraries_name_versions_that_are_used() -> None:
    pinned, count, stale = versions(), 0, []
    for path in sorted((REPOSITORY / "airflow_hops").rglob("*.py")):
        for name, version, issue in COMMENT.findall(path.read_text()):
            count += 1
            package = PACKAGES.get(name.lower(), name.lower())
            if version not in pinned[package] or (issue and not re.fullmatch(r"[\w.-]+/[\w.-]+#\d+|[A-Z]+-\d+", issue)):
                stale.append(f"{path.relative_to(REPOSITORY)}: {name} {version} {issue}, pinned: {pinned[package]}")
    assert stale == [], "still needed with the pinned version? then name it, otherwise remove what the comment explains"
    assert count > 80


def test_comments_begin_with_no_library_without_its_version() -> None:
    names = "TensorFlow|Keras|Horovod|PyArrow|Arrow|DuckDB|Spark|TFDV|MLflow|NumPy|gRPC|Airflow|onnxruntime|libtorrent"
    verbs = "ignores|refuses|would|does not|cannot|accepts only|waits|drops|ends|lacks|has no|takes|reads|needs|makes"
    pattern = re.compile(rf"# (?:By default )?({names})(?:'s [\w ]+)? ({verbs})\b.*")
    matches = {
        f"{path.relative_to(REPOSITORY)}: {match[0]}"
        for path in (REPOSITORY / "airflow_hops").rglob("*.py")
        for match in pattern.finditer(path.read_text())
    }
    assert matches == set(), "expected '# Library 1.2: …', with the version that is pinned"
