"""``airflow hops init``: generates a pipeline project for a table of the user."""

from __future__ import annotations

import importlib.util
import json
import keyword
import re
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from pathlib import Path

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.cli.terminal import print_warning
from airflow_hops.core.errors import BadInput, HopsError, InvalidArgument
from airflow_hops.core.processes.files import staged
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.extensions.projects.cli.project import project_files
from airflow_hops.extensions.projects.core.table_columns import TableDescription
from airflow_hops.runner.runtime import RuntimeHook

_STEP = "airflow_hops.extensions.projects.ml.columns:describe"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_OPTIONS = (
    "label", "key", "time", "weight", "problem", "drop", "keep", "missing", "type", "decimal", "thousands", "unit",
    "quote", "escape", "encoding",
)  # fmt: skip
_WIDEST = 34


@suppress_logs_and_warning
def init(args: Namespace) -> None:
    """Writes the project, and prints the detected columns and guesses."""
    name = args.name
    folder = Path(args.output or conf.get_mandatory_value("core", "dags_folder")).expanduser().resolve() / name
    if not _NAME.fullmatch(name) or keyword.iskeyword(name):
        raise InvalidArgument("name", name, "; expected a Python identifier of ASCII letters, digits and '_'")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise BadInput(f"{folder}: already exists; delete it, or choose another name, or another folder with --output")
    module = None if name in sys.modules else importlib.util.find_spec(name)
    if name in sys.modules or (module is not None and module.origin is not None):
        raise BadInput(f"name {name!r} is the name of a module installed with Airflow; choose another one")
    hook = RuntimeHook(args.hops_conn_id)
    hook.make_store()
    uri = args.from_ if "://" in args.from_ else str(Path(args.from_).expanduser().resolve())
    options = {option: getattr(args, option) for option in _OPTIONS}
    spec = StepSpec(step="init", entry=_STEP, params={"uri": uri, "package": name, **options})
    try:
        table = TableDescription.from_dict(hook.run(spec, cache=False, on_line=print_warning).value)
    except HopsError as error:
        raise SystemExit(str(error).removeprefix("step 'init': ")) from None
    is_batch = args.batch
    if is_batch is None and sys.stdin.isatty():
        is_batch = input("Does the model answer requests, or score tables? [requests/tables] ").strip().startswith("t")
    files = project_files(name, uri, args.encoding, table, spark=args.spark, is_batch=bool(is_batch))
    try:  # writes all files or none
        with staged(folder) as staging:
            staging.mkdir()
            for file, text in files.items():
                (staging / file).write_text(text, encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{folder}: cannot be written ({error}); choose another folder with --output") from None
    for line in report(name, uri, table, folder, {} if is_batch else hook.settings.services):
        print(line)


def report(name: str, uri: str, table: TableDescription, folder: Path, services: Mapping[str, str]) -> Iterator[str]:
    """Yields a description of the columns, and the next steps; ``services`` is empty for a model that scores tables."""
    extent = "" if table.whole else "the first "
    yield f"{uri}: {extent}{table.rows} rows"
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
    probability = f"that {label} is {_cell(table.positive)}" if table.positive is not None else ""
    yield (
        f"{label}: {table.problem}"
        + (f" ({', '.join(shown)})" if shown else "")
        + (f"; the model gives the probability {probability}" if probability else "")
    )
    yield from (f"note: {note}" for note in table.notes)
    yield ""
    yield f"Written to {folder}: correct wrong guesses there, and run it:"
    yield ""
    if services:
        yield "  airflow hops serve   # in a terminal of its own, as deploying needs it"
    yield "  airflow dags reserialize   # so that a running Airflow knows the DAGs at once, not within minutes"
    yield f"  airflow dags trigger {name}_training"
    if not services:
        yield f"  airflow dags trigger {name}_scoring   # once the training has deployed a model"
    if rest_port := services.get("serving_rest_port"):
        body = json.dumps({"instances": [table.request]}).replace("'", "'\\''")
        host = services["serving_host"]
        answer = f"   # the probability {probability}" if probability else ""
        yield f"  curl -d '{body}' http://{host}:{rest_port}/v1/models/{name}:predict{answer}"
    yield "  airflow hops runtime create --name test --with pytest   # beside the environment of the steps"
    yield f"  $(airflow hops runtime path)-test/bin/python -m pytest {folder}"


def _cell(text: str) -> str:
    """Returns text for a table: one line of limited length."""
    line = text if text.isprintable() else repr(text)[1:-1]
    return line if len(line) <= _WIDEST else f"{line[: _WIDEST - 1]}…"
