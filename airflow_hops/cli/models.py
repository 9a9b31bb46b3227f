"""``airflow hops models`` and ``card``: decisions on served models without a DAG, and model cards."""

from __future__ import annotations

import getpass
import sys
import uuid
from argparse import Namespace
from typing import Any

from airflow_hops.airflow_internals.cli import suppress_logs_and_warning
from airflow_hops.core.artifacts.artifact import Producer
from airflow_hops.core.errors import BadInput, ModelNotFound
from airflow_hops.core.models.model_records import read_record
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.hooks.model_server import control_services
from airflow_hops.reports.kept_cards import current_card, find_kept_card, keep_cards, read_kept_card
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def replace(args: Namespace) -> None:
    """Makes a model the champion, regardless of evaluations."""
    hook, outcome = _decide(args, "replace_champion", model=args.uri)
    if not outcome["changed"]:
        print(f"This model is the champion of {args.model!r} already, version {outcome['champion']}.")
        return
    print(f"Version {outcome['champion']} is the champion of {args.model!r} now.")
    if problem := keep_cards(hook.store, args.model, lambda dag_id: None):
        print(problem)


@suppress_logs_and_warning
def owners(args: Namespace) -> None:
    """Names the DAGs that may deploy a model and decide on its serving."""
    _, outcome = _decide(args, "set_owners", owners=args.dag)
    owned = f"Model {args.model!r} belongs to {', '.join(args.dag)}"
    print(f"{owned} now." if outcome["changed"] else f"{owned} already.")


def _decide(args: Namespace, function: str, **params: Any) -> tuple[RuntimeHook, dict[str, Any]]:
    if not args.reason.strip():
        raise SystemExit("--reason is empty; it is stored with the model")
    request_id = uuid.uuid4().hex
    hook = RuntimeHook(args.hops_conn_id)
    by = {"user": args.by or getpass.getuser(), "request_id": request_id}
    spec = StepSpec(
        step=function,
        entry=f"airflow_hops.ml.deploy.traffic:{function}",
        params={"model_name": args.model, "reason": args.reason, "by": by, **params},
        producer=Producer("cli", f"cli__{request_id}", function),
        services=control_services(args.hops_conn_id),
    )
    return hook, hook.run(spec, cache=False, on_line=lambda line: print(line.text)).value


@suppress_logs_and_warning
def card(args: Namespace) -> None:
    """Prints a model card."""
    hook = RuntimeHook(args.hops_conn_id)
    store = hook.store
    if args.kept:
        problems: list[str] = []
        kept_card = find_kept_card(store, args.model, args.version, problems)
        if kept_card is None:
            none = f"no card of version {args.version} of model {args.model!r} is stored; omit --kept"
            raise BadInput("\n".join([none, *problems]))
        sys.stderr.writelines(f"{problem}\n" for problem in problems)
        text = read_kept_card(store, kept_card)
    else:
        deployed = read_record(store, args.model).versions()
        if args.version not in deployed:
            known = ", ".join(map(str, deployed)) or "none"
            raise ModelNotFound(args.model, args.version).with_text(
                f"model {args.model!r} has no version {args.version} that was deployed; versions: {known}"
            )
        text, _ = current_card(store, args.model, args.version, lambda dag_id: None)
    sys.stdout.write(text)
