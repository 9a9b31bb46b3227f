"""CPU of the commands of ``airflow hops`` that a newcomer types, beside that of ``airflow version``.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
sys.path[0] = str(REPOSITORY)  # not this folder, whose statistics.py is not the standard library's

import statistics  # noqa: E402

AIRFLOW = Path(sys.executable).with_name("airflow")
BARE = "version"
CUSTOMERS = "customer,age,visits,churned\n" + "".join(f"c{n},{20 + n % 50},{n % 11},{n % 3 // 2}\n" for n in range(400))


def commands(home: Path, number: int) -> Mapping[str, Sequence[str]]:
    """The commands by a short name; ``number`` tells the projects apart that rounds write."""
    table = home / "customers.csv"
    table.write_text(CUSTOMERS)
    project = ["init", f"churn{number}", "--from", str(table), "--label", "churned", "--output", str(home / "projects")]
    named = {
        "--help": ["--help"],
        "runtime path": ["runtime", "path"],
        "runtime list": ["runtime", "list"],
        "schema history": ["schema", "history", "churn_training", "schema"],
        "store verify": ["store", "verify"],
        "init": project,
        "doctor": ["doctor"],
    }
    return {BARE: [BARE], **{name: ["hops", *arguments] for name, arguments in named.items()}}


def own_cpu_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """CPU seconds of a command's process, without those of programs that it starts."""
    read_end, write_end = os.pipe()
    program = (
        "import atexit, os, resource, runpy, sys\n"
        "def report():\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        f"    os.write({write_end}, str(used.ru_utime + used.ru_stime).encode())\n"
        "atexit.register(report)\n"
        "del sys.argv[0]\n"
        "runpy.run_path(sys.argv[0], run_name='__main__')\n"
    )
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    arguments = [sys.executable, "-c", program, str(AIRFLOW), *command]
    subprocess.run(arguments, env=dict(environment), pass_fds=[write_end], **quiet)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        return float(pipe.read())


def main() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3, help="how often each command runs; medians are reported")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hops-commands-") as folder:
        home = Path(folder)
        own = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        environment = {
            **own,
            "TMPDIR": folder,
            "AIRFLOW_HOME": folder,
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__HOPS__RUNTIME": str(REPOSITORY / ".venv-runtime"),
        }
        subprocess.run([AIRFLOW, "db", "migrate"], env=environment, check=True, capture_output=True)
        seconds: dict[str, list[float]] = {}
        for number in range(given.rounds):
            for name, command in commands(home, number).items():
                seconds.setdefault(name, []).append(own_cpu_s(command, environment))
    cpu_s = {name: round(statistics.median(values), 2) for name, values in seconds.items()}
    print(f"{'airflow version':22} {cpu_s[BARE]:6.2f} s of CPU")
    for name, value in cpu_s.items():
        if name != BARE:
            print(f"{f'airflow hops {name}':28} {value:6.2f}, {value - cpu_s[BARE]:+.2f}")
    beyond = {name: round(value - cpu_s[BARE], 2) for name, value in cpu_s.items() if name != BARE}
    print(json.dumps({"benchmark": "commands", "ratios": {}, "figures": {"cpu_s": cpu_s, "beyond_s": beyond}}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
