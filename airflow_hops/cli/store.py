"""``airflow hops store``: checks the artifacts of a store."""

from __future__ import annotations

import sys
from argparse import Namespace

from rich.progress import track

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning
from airflow_hops.cli.terminal import progress_console
from airflow_hops.core.artifacts.artifact import MANIFEST_NAME
from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.core.store.integrity import Damage, inner_manifests
from airflow_hops.runner.runtime import RuntimeHook


@suppress_logs_and_warning
def verify(args: Namespace) -> None:
    """Reads all files of the artifacts, lists damaged or additional ones, and exits with 1 if there are any."""
    store = RuntimeHook(args.hops_conn_id).store
    place = store.place(args.prefix or store.root)
    artifacts = store.artifacts(place)
    if not artifacts:
        raise BadInput(f"{place}: no artifact found")
    count, damages = 0, list[Damage]()
    inner: set[str] = set()
    for uri in track(artifacts, "Verifying", console=progress_console()):
        if f"{uri}/{MANIFEST_NAME}" in inner:
            continue
        count += 1
        try:
            manifest = store.manifest(uri)
            inner |= inner_manifests(uri, manifest)
            damages += store.damages(uri, manifest)
        except HopsError as error:
            damages.append(Damage(uri, MANIFEST_NAME, "a manifest", str(error)))
    damaged = len({damage.uri for damage in damages})
    summary = f"{count} artifacts in {place}: {damaged or 'none'} damaged"
    if not damages:
        print(summary, file=sys.stderr)
        return
    rows = [
        {
            "artifact": each.uri,
            "file": each.path,
            "expected": each.expected or "nothing",
            "found": each.found or "nothing",
        }
        for each in damages
    ]
    AirflowConsole().print_as(rows, output=args.output)
    print(summary, file=sys.stderr)
    print("To recreate a damaged artifact, clear the task that made it, with its downstream tasks.", file=sys.stderr)
    raise SystemExit(1)
