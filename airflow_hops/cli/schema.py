"""``airflow hops schema``: frozen schemas, their versions and approvals."""

from __future__ import annotations

import getpass
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning
from airflow_hops.cli.terminal import print_warning
from airflow_hops.core.errors import ArtifactNotFound, UnreadableFile
from airflow_hops.core.schema.history import (
    SCHEMA_FILE,
    has_schema,
    is_edited,
    request_reset,
    schema_history,
    schema_text,
)
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.runtime import RuntimeHook

_STEPS = "airflow_hops.ml.schema.stage"


def show(args: Namespace) -> None:
    """Prints a frozen schema, or one of its versions."""
    hook, uri = _schema(args)
    sys.stdout.write(schema_text(hook.store, uri, args.version))


@suppress_logs_and_warning
def history(args: Namespace) -> None:
    """Lists the versions of a frozen schema."""
    hook, uri = _schema(args)
    versions = [asdict(version) for version in schema_history(hook.store, uri)]
    edited = has_schema(hook.store, uri) and is_edited(hook.store, uri)
    shown = ("version", "in_force", "recorded_at", "approved_by", "note", "run_id", "sha256")
    AirflowConsole().print_as([{name: version[name] for name in shown} for version in versions], output=args.output)
    if edited:
        print(
            f"{uri}/{SCHEMA_FILE} has been edited since; the next run records the edit as a version.", file=sys.stderr
        )


@suppress_logs_and_warning
def diff(args: Namespace) -> None:
    """Prints the differences between two versions, or between the current schema and a file."""
    hook, uri = _schema(args)
    first, last = args.before, args.after
    if first is None:
        first = str(max(len(schema_history(hook.store, uri)) - 1, 1))
    elif last is None and not first.isdecimal():
        first, last = None, first
    texts = {"before": _version_or_file(hook, uri, first), "after": _version_or_file(hook, uri, last)}
    print(_run(hook, "compare", texts)["text"] or "no difference")


@suppress_logs_and_warning
def approve(args: Namespace) -> None:
    """Publishes a file as the new frozen schema."""
    hook, uri = _schema(args)
    _publish(hook, uri, _read(hook, args.file), args.file, args, args.note)


@suppress_logs_and_warning
def reset(args: Namespace) -> None:
    """Makes the next run infer the schema again."""
    hook, uri = _schema(args)
    request_reset(hook.store, uri, by=args.by or getpass.getuser(), note=args.note)
    print(f"The next run of DAG {args.dag_id!r} infers {uri} again; until then it stays in force.")


@suppress_logs_and_warning
def revert(args: Namespace) -> None:
    """Publishes an earlier version again."""
    hook, uri = _schema(args)
    text = schema_text(hook.store, uri, args.version)
    _publish(hook, uri, text, f"version {args.version}", args, args.note or f"back to version {args.version}")


def _version_or_file(hook: RuntimeHook, uri: str, values: str | None) -> str:
    if values is None or values.isdecimal():
        return schema_text(hook.store, uri, None if values is None else int(values))
    return _read(hook, values)


def _read(hook: RuntimeHook, file: str) -> str:
    try:
        return hook.store.read_text(file) if "://" in file else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableFile(file, f": cannot be read as a schema in protobuf text ({error})") from None


def _publish(hook: RuntimeHook, uri: str, text: str, source: str, args: Namespace, note: str) -> None:
    who = args.by or getpass.getuser()
    changes = _run(hook, "publish", {"uri": uri, "text": text, "source": source, "approved_by": who, "note": note})
    latest = schema_history(hook.store, uri)[-1]
    print(changes.get("text") or "no difference")
    print(f"In force: version {latest.version}, approved by {latest.approved_by or 'nobody'}.")


def _schema(args: Namespace) -> tuple[RuntimeHook, str]:
    hook = RuntimeHook(args.hops_conn_id)
    uri = hook.store.frozen_schema(args.dag_id, args.name)
    if not has_schema(hook.store, uri) and not schema_history(hook.store, uri):
        raise ArtifactNotFound(uri, f": no frozen schema exists; the first run of DAG {args.dag_id!r} makes it")
    return hook, uri


def _run(hook: RuntimeHook, function: str, params: Mapping[str, object]) -> Mapping[str, Any]:
    """Runs a step in the runtime environment, which has the parser of schemas."""
    spec = StepSpec(step=f"schema-{function}", entry=f"{_STEPS}:{function}", params=params)
    value: Mapping[str, Any] = hook.run(spec, cache=False, on_line=print_warning).value
    return value
