"""``airflow hops store``: checks the artifacts of a store against their manifests."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from rich.console import Console
from rich.progress import track

from airflow_hops.core.contract.artifacts import MANIFEST_NAME, BadInput, HopsError
from airflow_hops.core.store.integrity import Damage
from airflow_hops.hooks.runtime import RuntimeHook


@suppress_logs_and_warning
def verify(args: Namespace) -> None:
    """Reads all files of the artifacts, lists damaged or additional ones, and exits with 1 if there are any."""
    store = RuntimeHook(args.hops_conn_id).store
    place = args.prefix or store.root
    place = place.rstrip("/") if "://" in place else store.uri(*place.strip("/").split("/"))
    artifacts = store.artifacts(place)
    if not artifacts:
        raise BadInput(f"{place}: no artifact found")
    count, damages = 0, list[Damage]()
    inner: set[str] = set()  # manifests that are data of another artifact
    for uri in track(artifacts, "Verifying", console=Console(stderr=True)):
        if f"{uri}/{MANIFEST_NAME}" in inner:
            continue
        count += 1
        try:
            manifest = store.manifest(uri)
            inner.update(f"{uri}/{entry.path}" for entry in manifest.files if entry.path.endswith(f"/{MANIFEST_NAME}"))
            damages += store.damages(uri, manifest)
        except HopsError as error:
            damages.append(Damage(uri, MANIFEST_NAME, "a manifest", str(error)))
    damaged = len({damage.uri for damage in damages})
    summary = f"{count} artifacts in {place}: {damaged or 'none'} damaged"
    if not damages:
        print(summary, file=sys.stderr)
        return
    rows = [
        {"artifact": of.uri, "file": of.path, "expected": of.expected or "nothing", "found": of.found or "nothing"}
        for of in damages
    ]
    AirflowConsole().print_as(rows, output=args.output)
    print(summary, file=sys.stderr)
    print("To make a damaged artifact again, clear the task that made it, with its downstream tasks.", file=sys.stderr)
    raise SystemExit(1)
