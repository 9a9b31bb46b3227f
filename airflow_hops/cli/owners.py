"""Shows and changes the owners of names that DAGs share, for the commands of extensions."""

from __future__ import annotations

import getpass
from argparse import Namespace

from airflow_hops.airflow_internals.cli import AirflowConsole
from airflow_hops.core.store.owners import owned_names, owners_of, set_owners
from airflow_hops.runner.runtime import RuntimeHook


def change_owners(args: Namespace, kind: str) -> None:
    """Names the owners of a name, or lists the names of a kind with theirs; ``args`` are ``OWNERS_ARGUMENTS``."""
    store = RuntimeHook(args.hops_conn_id).store
    if not args.dag:
        names = owned_names(store, kind) if args.name is None else [args.name]
        rows = [{"name": name, "owners": ", ".join(owners_of(store, kind, name))} for name in names]
        AirflowConsole().print_as(rows, output=args.output)
        return
    if not (args.reason or "").strip():
        raise SystemExit("--reason is missing; it is stored with the owners")
    changed = set_owners(store, kind, args.name, args.dag, args.by or getpass.getuser(), args.reason)
    print(f"{args.name!r} belongs to {', '.join(args.dag)} {'now' if changed else 'already'}.")
