"""Writes ``contribute/pins.md``: the age of each pin, the newest release, and what keeps the pin: ``make pins``.

Releases and their days are uv's answer (``pylock.toml``), from the index that it is configured with. What keeps a pin
is read from the metadata of installed packages, those of the profile ``current`` in a folder of their own if need be.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from importlib.metadata import distributions
from pathlib import Path
from statistics import median_low
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

REPOSITORY = Path(__file__).resolve().parents[1]
UV = str(REPOSITORY / ".uv/bin/uv")
ENVIRONMENTS = {"airflow": (".venv", "airflow", "dev", "3.11"), "base": (".venv-runtime", "runtime", "runtime", "3.11"),
                "current": (".venv-runtime", "runtime-current", "runtime-current", "3.12")}  # fmt: skip
"""Folder, file of the pins, group in pyproject.toml, and Python of each environment."""
_PAGE = """# Pins

All pins, with those of dependencies' dependencies, as of {today}. `make pins` writes this page. *Newest* is the newest
release for the environment's Python. *Kept by* are the requirements that exclude it; *airflow-hops* are our own. Where
there are none, `make requirements UPGRADE=1` moves the pin, unless the newest release needs another one that is kept.
`make pins AUDIT=1` fills the last column with what pip-audit knows, where the network leads to its service.

| environment | pins | not the newest | kept by a requirement | half are older than | oldest |
|---|---|---|---|---|---|
{summary}

| package | environment | pinned | newest | kept by | {audited} |
|---|---|---|---|---|---|
{rows}
"""


def applicable(requires: Mapping[str, Iterable[str]], python: str) -> dict[str, list[Requirement]]:
    """Returns the requirements of packages that hold on Linux with a Python, and with the extras that others name."""
    parsed = {canonicalize_name(who): [Requirement(each) for each in texts] for who, texts in requires.items()}
    extras: dict[str, set[str]] = {who: {""} for who in parsed}
    for each in (each for group in parsed.values() for each in group):
        extras.get(canonicalize_name(each.name), set()).update(each.extras)
    where = {"python_version": python, "python_full_version": f"{python}.9", "sys_platform": "linux"}

    def holds(who: str, each: Requirement) -> bool:
        return each.marker is None or any(each.marker.evaluate({**where, "extra": extra}) for extra in extras[who])

    return {who: [each for each in group if holds(who, each)] for who, group in parsed.items()}


def keepers(package: str, newest: str, required: Mapping[str, Iterable[Requirement]]) -> list[str]:
    """Returns who excludes the newest version of a package, and how; an ``override`` is in place of all others."""
    lines = {who: [each for each in held if canonicalize_name(each.name) == package] for who, held in required.items()}
    lines = {"override": lines["override"]} if lines.get("override") else lines
    excluding = {
        who: [str(part) for each in held for part in each.specifier if not part.contains(newest, prereleases=True)]
        for who, held in sorted(lines.items())
    }
    return [f"{who}: {package}{','.join(sorted(parts))}" for who, parts in excluding.items() if parts]


def releases(requirements: Iterable[str], python: str) -> dict[str, tuple[str, date]]:
    """Returns version and day of the newest release that each requirement admits, by package."""
    with tempfile.TemporaryDirectory() as folder:
        source, lock = Path(folder, "pins.txt"), Path(folder, "pylock.toml")
        source.write_text("\n".join(requirements))
        options = ["--no-deps", "--python-version", python, "--python-platform", "x86_64-manylinux_2_40"]
        command = [UV, "pip", "compile", "--quiet", *options, "--format", "pylock.toml", "-o", str(lock), str(source)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        packages = tomllib.loads(lock.read_text())["packages"]
    files = {each["name"]: [*each.get("wheels", ()), *filter(None, [each.get("sdist")])] for each in packages}
    days = {name: min(file["upload-time"] for file in built).date() for name, built in files.items()}
    return {each["name"]: (each["version"], days[each["name"]]) for each in packages}


def vulnerabilities(pins: Iterable[str]) -> dict[str, str]:
    """Returns what pip-audit knows about pins. Raises SystemExit if it could not look one up."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write("\n".join(pins))
        file.flush()
        command = [UV, "tool", "run", "pip-audit", "-r", file.name, "--no-deps", "--disable-pip", "--format", "json"]
        answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout)["dependencies"]
    if skipped := [each["skip_reason"] for each in answer if "skip_reason" in each]:
        raise SystemExit(f"{len(skipped)} pins could not be audited, the first because: {skipped[0]}")
    return {canonicalize_name(each["name"]): " ".join(known["id"] for known in each["vulns"]) for each in answer}


def _requirements(file: str) -> list[str]:
    lines = (REPOSITORY / "requirements" / file).read_text().splitlines()
    return [line for line in lines if line[:1] not in ("", " ", "#", "-")]


def _own(groups: Mapping[str, Any], group: str) -> list[str]:
    within = [_own(groups, each["include-group"]) for each in groups[group] if isinstance(each, dict)]
    return [each for each in groups[group] if isinstance(each, str)] + [each for nested in within for each in nested]


def main() -> None:
    """Writes the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vulnerabilities", action="store_true", help="ask pip-audit, which needs its service")
    parser.add_argument("--current", help="folder with the packages of the profile current (default: .venv-runtime)")
    args = parser.parse_args()
    groups = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["dependency-groups"]
    summary, rows = [], dict[tuple[str, ...], list[str]]()
    for name, (folder, file, group, python) in ENVIRONMENTS.items():
        (lines,) = applicable({"pins": _requirements(f"{file}.txt")}, python).values()
        pins = {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in lines}
        pinned, newest = releases(map(str, lines), python), releases(pins, python)
        behind = {each for each in pins if Version(newest[each][0]) > Version(pins[each])}
        site = next((REPOSITORY / folder).glob("lib/python*/site-packages"))
        path = args.current if name == "current" and args.current else str(site)
        installed = {canonicalize_name(each.name): each for each in distributions(path=[path])}
        if not installed:
            raise SystemExit(f"{path}: no packages are installed there, expected those of {name}")
        if other := [each for each in pins if each in installed and installed[each].version != pins[each]]:
            print(f"{path} has not the pins of {name} ({', '.join(other[:9])} …): what keeps them is not looked up")
        requires = {who: each.requires or [] for who, each in installed.items()}
        requires["override"] = [] if name == "airflow" else _requirements(f"{file}-override.txt")
        requires["airflow-hops"] = [*requires.get("airflow-hops", ()), *_own(groups, group)]
        required = applicable(requires, python)
        known = vulnerabilities(map(str, lines)) if args.vulnerabilities else {}
        held = 0
        for each, (version, day) in pinned.items():
            facts = ["the same", ""]
            if each in behind:
                why = keepers(each, newest[each][0], required)
                held += bool(why)
                facts = [
                    "{} ({})".format(*newest[each]),
                    "not looked up" if other else " ".join(f"`{by}`" for by in why),
                ]
            row = (each, f"{version} ({day})", *facts, known.get(each, ""))
            rows.setdefault(row, []).append(name)
        days = sorted(day for _, day in pinned.values())
        shown = (name, len(pins), len(behind), "not looked up" if other else held, median_low(days), days[0])
        summary.append(f"| {' | '.join(map(str, shown))} |")
    ordered = sorted(rows.items(), key=lambda row: (row[0][2] == "the same", row[0]))
    table = [f"| {row[0]} | {', '.join(cells)} | {' | '.join(row[1:])} |" for row, cells in ordered]
    audited = f"known vulnerabilities{'' if args.vulnerabilities else ': not looked up'}"
    texts = {"audited": audited, "summary": "\n".join(summary), "rows": "\n".join(table)}
    (REPOSITORY / "contribute/pins.md").write_text(_PAGE.format(today=datetime.now(UTC).date(), **texts))


if __name__ == "__main__":
    main()
