"""``airflow hops init``: a project for one's own file."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import shutil
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow.configuration import conf
from airflow.utils.cli import suppress_logs_and_warning

from airflow_hops.cli.project import project_files
from airflow_hops.core.contract.artifacts import BadInput, HopsError
from airflow_hops.core.contract.protocol import StepSpec
from airflow_hops.core.contract.table_columns import TableDescription
from airflow_hops.hooks.runtime import RuntimeHook

_STEP = "airflow_hops.ml.stages.init.columns:describe"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TOLD = (
    "label", "key", "time", "weight", "problem", "drop", "keep", "type", "decimal", "thousands", "encoding",
)  # fmt: skip
_WIDEST = 34


@suppress_logs_and_warning
def init(args: Namespace) -> None:
    """Writes the project, and says what it found and guessed.

    Raises:
        SystemExit: it cannot be written; the message says why, and nothing is.
    """
    try:
        folder = Path(args.output or conf.get_mandatory_value("core", "dags_folder")).expanduser().resolve() / args.name
        _check_name(args.name, folder)
        hook = RuntimeHook(args.hops_conn_id)
        uri = args.from_ if "://" in args.from_ else str(Path(args.from_).expanduser().resolve())
        told = {name: getattr(args, name) for name in _TOLD}
        spec = StepSpec(step="init", entry=_STEP, params={"uri": uri, "package": args.name, **told})
        table = TableDescription.from_dict(hook.run(spec, cache=False, on_line=lambda line: None).value)
        files = project_files(args.name, uri, args.encoding, table)
        _write(folder, files)
    except HopsError as error:
        raise SystemExit(str(error).removeprefix("step 'init': ")) from None
    for line in report(args.name, uri, table, folder, hook.settings.services):
        print(line)


def report(name: str, uri: str, table: TableDescription, folder: Path, services: Mapping[str, str]) -> Iterator[str]:
    """What a person wants to know of the columns, and what to do next."""
    of = "" if table.whole else "the first "
    yield f"{uri}: {of}{table.rows} rows"
    yield ""
    headers = ("column", "type", "missing", "example", "role", "why")
    rows = [(c.name, c.type, str(c.missing), c.example, c.role, c.why) for c in table.columns]
    cells = [headers, *([*map(_cell, row[:-1]), row[-1]] for row in rows)]
    widths = [max(len(row[number]) for row in cells) for number in range(len(headers) - 1)]
    for row in cells:
        yield "  ".join([*(text.ljust(width) for text, width in zip(row, widths, strict=False)), row[-1]]).rstrip()
    yield ""
    shown = [*map(_cell, (table.classes or ())[:10]), *(["…"] if len(table.classes or ()) > 10 else [])]
    label = ", ".join(map(_cell, table.named("label")))
    yield f"{label}: {table.problem}" + (f" ({', '.join(shown)})" if shown else "")
    yield from (f"note: {note}" for note in table.notes)
    yield ""
    yield f"Written to {folder}: correct what was guessed wrong there, and run it:"
    yield ""
    yield f"  airflow dags trigger {name}_training"
    yield "  airflow hops serve"
    if rest_port := services.get("serving_rest_port"):
        body = json.dumps({"instances": [table.request]}).replace("'", "'\\''")
        host = services["serving_host"]
        yield f"  curl -d '{body}' http://{host}:{rest_port}/v1/models/{name}:predict"
    yield f"  $(airflow hops runtime path)/bin/python -m pytest {folder}   # airflow hops runtime install pytest"


def _cell(text: str) -> str:
    """Text for a table: on one line, and not too long."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"


def _check_name(name: str, folder: Path) -> None:
    """Sees to it that a package of this name can be made there, and is found.

    Raises:
        BadInput: it cannot be.
    """
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise BadInput(f"name is {name!r}; expected a Python identifier of ASCII letters, digits and '_'")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: exists already; delete it, or choose another name, or another folder with --output")
    found = None if name in sys.modules else importlib.util.find_spec(name)
    if name in sys.modules or (found is not None and found.origin is not None):
        raise BadInput(f"name {name!r} is the name of a module installed with Airflow; choose another one")


def _write(folder: Path, files: Mapping[str, str]) -> None:
    """Writes all of the files, or nothing."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            for name, text in files.items():
                (staging / name).write_text(text, encoding="utf-8")
            staging.chmod(0o755)
            staging.rename(folder)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written ({error}); choose another folder with --output") from None
