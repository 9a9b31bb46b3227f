"""Steps before training on 600 rows of many columns: seconds, and what a column costs where there are many.

See ``README.md`` for what each figure means.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
SIZES = (1000, 3000)
ROWS = 600


def main() -> int:
    """The command line."""
    python = REPOSITORY / ".venv-runtime" / "bin" / "python"
    figures = {}
    for columns in SIZES:
        command = [str(python), "-m", "benchmarks.measurement.wide_table", str(columns), str(ROWS)]
        done = subprocess.run(command, cwd=REPOSITORY, check=True, stdout=subprocess.PIPE, text=True)
        figures[f"{columns}_columns"] = seconds = json.loads(done.stdout.splitlines()[-1])
        print(f"{columns:,} columns: {', '.join(f'{step} {taken:.2f} s' for step, taken in seconds.items())}")
    few, many = (sum(seconds.values()) / size for seconds, size in zip(figures.values(), SIZES, strict=True))
    print(
        json.dumps(
            {
                "benchmark": "columns",
                "ratios": {"a column of 1,000 over one of 3,000": round(few / many, 2)},
                "figures": figures,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
