"""Plants faults of the history again, and lists which of them the tests catch: ``python scripts/replant_faults.py``.

``FAULTS`` names commits that mended something. Ten at a time, what each changed in the package or the pages is reversed
in a copy of the checkout, and tests run there: the faults' own ones, or with ``--whole`` all of ``make test``. The own
tests of a fault are those in files that its commit changed, and those of a name that it wrote, wherever they stand
today. A fault is caught if one of them fails that passes without the faults.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

from test_profile import checkout_files

ROOT = Path(__file__).resolve().parent.parent
# fmt: off
FAULTS = [
    "dc63d6fd", "ff6ae379", "4feb23b3", "5581fbcc", "a3a3590d", "e6c79afd", "75a3bfc1", "4c711899",
    "5ce93b25", "4a1f5a82", "8e90281a", "bb9140a3", "db9a4f5a", "4ef7b393", "eb257b26", "d4b6c0df",
    "54cbc277", "9c63971b", "c38e5ad2", "813851f2", "75fa9b06", "9ef1fe0d", "5a4f0b93", "a00c2e14",
    "ac594d26", "1b5cb796", "d88027e3", "18d349c0", "62652172", "cbd59151", "b61221bd", "f3d06622",
    "8af99a5e", "1576f96d", "520be002", "f9c62dc0", "f245f156", "4d6f4486", "c3a7274f", "01f58e28",
    "6f722899", "71c71bac",
]
# fmt: on
GROUP = 10
CODE = ("airflow_hops", "ui/src", ":!ui/src/api", ":!*.test.ts", ":!*.test.tsx")


def git(*arguments: str, cwd: Path = ROOT, text: str | None = None) -> str:
    """Returns what git prints. Raises CalledProcessError if it fails."""
    command = ["git", *arguments]
    return subprocess.run(command, cwd=cwd, input=text, check=True, capture_output=True, text=True).stdout


def copy_checkout(folder: Path) -> None:
    """Copies the files that git knows or would add; environments and packages of the pages are linked."""
    for name in checkout_files():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    for name in (".venv", ".venv-runtime", ".uv", "ui/node_modules"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "airflow_hops/web/static", folder / "airflow_hops/web/static", dirs_exist_ok=True)
    git("init", "--quiet", cwd=folder)


def moved_since(fault: str) -> dict[str, str]:
    """Returns the files that were moved since a commit: today's paths by those of then."""
    moves: dict[str, str] = {}
    log = git(
        "log", "--reverse", "--find-renames=40", "--diff-filter=R", "--name-status", "--format=", f"{fault}..HEAD"
    )
    for _, old, new in (line.split("\t") for line in log.splitlines()):
        moves = {path: new if place == old else place for path, place in moves.items()} | {old: new}
    return moves


def plant(fault: str, folder: Path) -> bool:
    """Reverses what a commit changed in the package and the pages; returns False if other changes are in the way."""
    patch = git("diff", "-U1", f"{fault}~1", fault, "--", *CODE)
    for old, new in moved_since(fault).items():
        patch = re.sub(rf"(?<=[ab]/){re.escape(old)}$", new, patch, flags=re.MULTILINE)
        patch = re.sub(rf"(?<=[ab]/){re.escape(old)} ", f"{new} ", patch)
        if old.endswith(".py"):
            patch = re.sub(rf"\b{re.escape(dotted(old))}\b", dotted(new), patch)
    try:
        git("apply", "--reverse", "-C1", "-", cwd=folder, text=patch)
    except subprocess.CalledProcessError:
        return False
    return True


def dotted(path: str) -> str:
    """Returns the name of the module in a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def own_tests(fault: str, folder: Path) -> tuple[set[str], set[str]]:
    """Returns today's files with tests of a fault, and the names of the tests that its commit wrote or changed."""
    patch = git("diff", f"{fault}~1", fault, "--", "tests", "ui/src/*.test.ts*")
    names = set(re.findall(r"^(?:\+|@@.*@@ )\s*(?:async )?def (test_\w+)", patch, re.M))
    moves = moved_since(fault)
    files = {moves.get(name, name) for name in re.findall(r"^\+\+\+ b/(\S+)", patch, re.M)}
    files = {name for name in files if (folder / name).exists()}
    files = {name for name in files if Path(name).name.startswith("test_") or ".test." in name}
    tests = {str(file.relative_to(folder)): file.read_text() for file in (folder / "tests").rglob("test_*.py")}
    return files | {file for file, text in tests.items() if any(f"def {name}(" in text for name in names)}, names


def run_tests(folder: Path, files: set[str] | None) -> set[str]:
    """Runs tests, and returns the failed ones as ``file::test``. ``None`` stands for all of ``make test``."""
    failed = set()
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    sides = (
        (".venv/bin/python", ("tests",), re.compile("tests/(?!gpu/|ml/)").match),
        (
            ".venv-runtime/bin/python",
            ("--confcutdir", "tests/ml", "tests/ml"),
            re.compile("tests/ml/").match,
        ),
    )
    for python, whole, belongs in sides:
        chosen = whole if files is None else (*whole[:-1], *sorted(filter(belongs, files)))
        if len(chosen) < len(whole):
            continue
        report = folder / "report.xml"
        parallel = ("--numprocesses", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
        command = [folder / python, "-m", "pytest", *chosen, *parallel, "-q", "--no-header", "--junit-xml", report]
        subprocess.run([*command, "-o", "junit_family=xunit1"], cwd=folder, env=environment, stdout=subprocess.DEVNULL)
        for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            if case.find("failure") is not None or case.find("error") is not None:
                name = re.sub(r"@[^\[\]]*$", "", case.get("name", ""))  # the group that pytest-xdist appends
                failed.add(f"{case.get('file')}::{name}")
        report.unlink(missing_ok=True)
    pages = {name for name in files or () if name.startswith("ui/")}
    if files is None or pages:
        report = folder / "ui.json"
        command = ["npx", "vitest", "run", "--reporter=json", f"--outputFile={report}"]
        chosen = sorted(str(Path(name).relative_to("ui")) for name in pages)
        subprocess.run([*command, *chosen], cwd=folder / "ui", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for result in json.loads(report.read_text())["testResults"] if report.exists() else ():
            name = str(Path(result["name"]).resolve().relative_to(folder.resolve()))
            failed |= {f"{name}::{each['title']}" for each in result["assertionResults"] if each["status"] == "failed"}
            if result["status"] == "failed" and not result["assertionResults"]:
                failed.add(f"{name}::")
    return failed


def main() -> None:
    """Plants all faults, and prints a line for each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--whole", action="store_true", help="run all of 'make test', not only the faults' own tests")
    parser.add_argument(
        "--faults", nargs="+", default=FAULTS, metavar="COMMIT", help="commits (default: the list here)"
    )
    parser.add_argument("--out", type=Path, help="file for the results (JSON)")
    arguments = parser.parse_args()
    results: dict[str, list[str] | None] = {}
    for start in range(0, len(arguments.faults), GROUP):
        with tempfile.TemporaryDirectory(prefix="replanted-") as name:
            sound, faulty = Path(name, "sound"), Path(name, "faulty")
            for folder in (sound, faulty):
                folder.mkdir()
                copy_checkout(folder)
            planted = {}
            for fault in arguments.faults[start : start + GROUP]:
                if plant(fault, faulty):
                    planted[fault] = own_tests(fault, faulty)
                else:
                    results[fault] = None
            if any(path.startswith("ui/") for fault in planted for path in git("show", "--name-only", fault).split()):
                subprocess.run(
                    [faulty / ".venv/bin/python", "scripts/build_ui.py"], cwd=faulty, stdout=subprocess.DEVNULL
                )
            files = None if arguments.whole else set().union(*(files for files, _ in planted.values()))
            failed = run_tests(faulty, files)
            failed -= run_tests(sound, {test.partition("::")[0] for test in failed}) if failed else set()
            for fault, (own, names) in planted.items():
                caught = {test for test in failed if re.sub(r"\[.*", "", test.partition("::")[2]) in names}
                results[fault] = sorted(caught or {test for test in failed if test.partition("::")[0] in own})
        for fault in arguments.faults[start : start + GROUP]:
            tests = results[fault]
            verdict = "not reversible" if tests is None else f"caught by {tests[0]}" if tests else "NOT CAUGHT"
            print(f"{git('log', '-1', '--format=%h %s', fault).strip()}: {verdict}", flush=True)
    caught = sum(bool(tests) for tests in results.values())
    print(f"caught {caught} of {sum(tests is not None for tests in results.values())} faults")
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    sys.exit(main())
