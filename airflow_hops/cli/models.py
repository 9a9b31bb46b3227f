"""``airflow hops models``: decisions on served models without a DAG."""

from __future__ import annotations

import getpass
import uuid
from argparse import Namespace
from typing import Any

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.hooks.model_server import run_decision
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def replace(args: Namespace) -> None:
    """Makes a model the champion, regardless of evaluations."""
    outcome = _decide(args, "replace_champion", model=args.uri)
    if not outcome["changed"]:
        print(f"This model is the champion of {args.model!r} already, version {outcome['champion']}.")
        return
    print(f"Version {outcome['champion']} is the champion of {args.model!r} now.")


@suppress_logs_and_warning
def owners(args: Namespace) -> None:
    """Names the DAGs that may deploy a model and decide on its serving."""
    outcome = _decide(args, "set_owners", owners=args.dag)
    owned = f"Model {args.model!r} belongs to {', '.join(args.dag)}"
    print(f"{owned} now." if outcome["changed"] else f"{owned} already.")


def _decide(args: Namespace, function: str, **params: object) -> dict[str, Any]:
    if not args.reason.strip():
        raise SystemExit("--reason is empty; it is stored with the model")
    request_id = uuid.uuid4().hex
    by = {"user": args.by or getpass.getuser(), "request_id": request_id}
    params |= {"model_name": args.model, "reason": args.reason, "by": by}
    producer = Producer("cli", f"cli__{request_id}", function)
    return run_decision(RuntimeHook(args.hops_conn_id), function, producer, lambda line: print(line.text), **params)
