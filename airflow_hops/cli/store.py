"""``airflow hops store``: whether the artifacts of a store are what their manifests say."""

from __future__ import annotations

import sys
from argparse import Namespace

from airflow.cli.simple_table import AirflowConsole
from airflow.utils.cli import suppress_logs_and_warning
from rich.console import Console
from rich.progress import track

from airflow_hops.core.contract.artifacts import MANIFEST_NAME, BadInput, HopsError
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.store.integrity import Damage
from airflow_hops.hooks.runtime import RuntimeHook


@suppress_logs_and_warning
def verify(args: Namespace) -> None:
    """Reads every file of the artifacts again; lists those that are damaged or added, and exits with 1 if any are."""
    try:
        store = RuntimeHook(args.hops_conn_id).store
        place = _address(store, args.prefix)
        artifacts = store.artifacts(place)
        if not artifacts:
            raise BadInput(f"{place}: no artifact found")
        count, found = _check(store, artifacts)
    except (HopsError, OSError) as error:
        raise SystemExit(str(error)) from None
    if found:
        AirflowConsole().print_as([_row(damage) for damage in found], output=args.output)
    damaged = len({damage.uri for damage in found})
    print(f"{count} artifacts in {place}: {damaged or 'none'} damaged", file=sys.stderr)
    if found:
        print(
            "To make a damaged artifact again, clear the task that made it, with its downstream tasks.", file=sys.stderr
        )
        raise SystemExit(1)


def _address(store: ArtifactStore, prefix: str | None) -> str:
    if not prefix:
        return store.root
    if "://" in prefix:
        return prefix.rstrip("/")
    return store.uri(*prefix.strip("/").split("/"))


def _check(store: ArtifactStore, artifacts: list[str]) -> tuple[int, list[Damage]]:
    """How many artifacts there are, and what of them is damaged."""
    count = 0
    found: list[Damage] = []
    inner: set[str] = set()  # manifests that are data of another artifact
    for uri in track(artifacts, "Verifying", console=Console(stderr=True)):
        if f"{uri}/{MANIFEST_NAME}" in inner:
            continue
        count += 1
        try:
            manifest = store.manifest(uri)
            inner.update(f"{uri}/{entry.path}" for entry in manifest.files if entry.path.endswith(f"/{MANIFEST_NAME}"))
            found += store.damages(uri, manifest)
        except HopsError as error:
            found.append(Damage(uri, MANIFEST_NAME, "a manifest", str(error)))
    return count, found


def _row(damage: Damage) -> dict[str, str]:
    expected, found = damage.expected or "nothing", damage.found or "nothing"
    return {"artifact": damage.uri, "file": damage.path, "expected": expected, "found": found}
