"""``airflow hops datasets``: shares data sets with other organisations, and fetches theirs."""

from __future__ import annotations

import json
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

from rich.filesize import decimal

from airflow_hops.airflow_internals.cli import AirflowConsole, suppress_logs_and_warning
from airflow_hops.airflow_internals.tasks import conf
from airflow_hops.cli.owners import change_owners
from airflow_hops.cli.terminal import print_warning
from airflow_hops.core.errors import BadInput
from airflow_hops.core.processes.files import write_atomically
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.extensions.sharing.core.entries import Dataset, DatasetEntry, DatasetRef, check_name
from airflow_hops.extensions.sharing.core.records import OWNED, PREVIEW, SharingRecords, Transfer
from airflow_hops.extensions.sharing.core.settings import SETTINGS_NAME, SharingFolder, Trusted
from airflow_hops.extensions.sharing.core.statements import ENTRY, create_key, load_key, public_text, sign
from airflow_hops.extensions.sharing.core.waiting import Wait, next_wait, wait_here
from airflow_hops.runner.launchers.local import runtime_python, runtime_variables
from airflow_hops.runner.runtime import RuntimeHook

_PUBLISH = "airflow_hops.extensions.sharing.ml.publish:run"
_NEW_SETTINGS = """\
organisation = "{organisation}"
# listen = "127.0.0.1:6881"       # address and port at which the daemon waits for peers
# address = "data.example:6881"   # how others reach it, if that differs
# upload_mbit_s = 0               # limits of the rates; 0 for none
# download_mbit_s = 0
# disk_gb = 100                   # maximum size of fetched data sets on the daemon's disk
# seeding = "never"               # give fetched data sets to others: never, in_use, always
"""


@suppress_logs_and_warning
def publish(args: Namespace) -> None:
    """Publishes an artifact as the next version of a data set."""
    folder, hook = sharing_folder(), RuntimeHook(args.hops_conn_id, runtime=args.runtime)
    settings, key, records = folder.settings(), load_key(folder.key), SharingRecords(hook.store)
    try:
        check_name("--name", args.name)
        card = Path(args.card).read_text() if args.card else args.description
    except ValueError as error:
        raise BadInput(str(error)) from None
    if not 0 <= args.sample_rows <= 1000:
        raise BadInput(f"--sample-rows is {args.sample_rows}, expected 0 to 1000")
    versions = [each.entry.version for each in records.own() if each.entry.name == args.name]
    withdrawn = (records.read("versions", f"{args.name}.json") or {}).get("last", 0)
    version = max([withdrawn, *versions]) + 1
    params = {
        "uri": hook.store.place(args.artifact),
        "data": str(folder.data(settings)),
        "name": args.name,
        "version": version,
        "licence": args.licence,
        "description": args.description,
        "card": card,
        "sample_rows": args.sample_rows,
    }
    result = hook.run(StepSpec(step="publish", entry=_PUBLISH, params=params), cache=False, on_line=print_warning)
    entry = DatasetEntry.from_dict(result.value).check()
    records.write({"last": version}, "versions", f"{args.name}.json")
    records.write(sign(key, ENTRY, entry.to_dict()), "published", f"{entry.name}@{entry.version}.json")
    records.update_catalogue(key)
    print(f"{settings.organisation}/{entry.name}@{entry.version}: {entry.rows} rows, {decimal(entry.size_bytes)}")
    print(f"Catalogue for others: the web UI at /hops/catalogue, or a copy of {records.uri('public')}", file=sys.stderr)
    if records.daemon() is None:
        print("No sharing daemon has run: start 'airflow hops datasets serve'", file=sys.stderr)


def _records(args: Namespace) -> SharingRecords:
    """Returns the records of data sets in the store, which a team that only fetches may not have yet."""
    hook = RuntimeHook(args.hops_conn_id)
    hook.make_store()
    return SharingRecords(hook.store)


@suppress_logs_and_warning
def unpublish(args: Namespace) -> None:
    """Stops sharing a version; fetched copies of others remain."""
    records, ref = _records(args), DatasetRef.parse(args.dataset)
    key, published = load_key(sharing_folder().key), records.published()
    name = f"{ref.name}@{ref.version}"
    if name not in published:
        raise BadInput(f"data set {args.dataset!r} is not published; published are {', '.join(published) or 'none'}")
    records.remove("published", f"{name}.json")
    records.update_catalogue(key)
    print(f"{name} is not shared any more. The daemon removes its copy of the files.")


@suppress_logs_and_warning
def owners(args: Namespace) -> None:
    """Names the DAGs whose artifacts may be published under a name, or lists the owners."""
    change_owners(args, OWNED)


@suppress_logs_and_warning
def show(args: Namespace) -> None:
    """Fetches and prints the card, schema, statistics and sample rows of a data set, without its data."""
    records, ref = _records(args), DatasetRef.parse(args.dataset)
    dataset = next((each for each in records.own() if ref.matches(each)), None)
    preview = records.preview(dataset) if dataset else None
    last: Wait | None = None
    while dataset is None or preview is None:
        step = next_wait(records, ref, last, wants=PREVIEW)
        if isinstance(step, Wait):
            wait_here(records, step)
            last = step
        else:
            dataset, preview = step, records.preview(step)
    print(json.dumps({**dataset.to_dict(), "preview": preview.to_dict()}, indent=1))


@suppress_logs_and_warning
def download(args: Namespace) -> None:
    """Has the daemon fetch a data set into the store, and follows it."""
    records, ref = _records(args), DatasetRef.parse(args.dataset)
    last: Wait | None = None
    while isinstance(step := next_wait(records, ref, last), Wait):
        shown: list[str] = []
        wait_here(records, step, lambda transfer, shown=shown: _say_progress(transfer, shown))  # type: ignore[misc]
        last = step
    print(f"{step.ref}: in {records.place(step.ref)}")


@suppress_logs_and_warning
def remove(args: Namespace) -> None:
    """Ends the download of a data set, and removes its files from the store and the daemon's disk."""
    records, ref = _records(args), DatasetRef.parse(args.dataset)
    asked = [each.ref for each in records.requests() if (ref.name, ref.version) == (each.name, each.version)]
    wanted = next((each for each in asked if ref.organisation in ("", each.organisation)), None)
    wanted = wanted or _fetched(records, ref).ref
    records.withdraw(wanted)
    records.store.remove_text(f"{records.place(wanted)}/dataset.json")
    records.store.remove_folder(records.place(wanted))
    print(f"{wanted}: removed.")


@suppress_logs_and_warning
def keys(args: Namespace) -> None:
    """Prints our public key and the trusted ones; creates our key; trusts another organisation or ends that."""
    folder = sharing_folder()
    if args.create:
        try:
            check_name("--organisation", args.organisation or "")
        except ValueError as error:
            raise BadInput(str(error)) from None
        create_key(folder.key)
        if not (folder.path / SETTINGS_NAME).exists():
            write_atomically(folder.path / SETTINGS_NAME, _NEW_SETTINGS.format(organisation=args.organisation))
    if args.trust:
        name, separator, key = args.trust.partition("=")
        if not separator or not args.catalogue:
            raise BadInput(f"--trust is {args.trust!r}; expected NAME=KEY, together with --catalogue ADDRESS")
        folder.trust(Trusted(name, key, args.catalogue, tuple(args.address)))
    if args.distrust:
        folder.distrust(args.distrust)
    rows = [{"organisation": f"{folder.settings().organisation} (this one)", "key": public_text(load_key(folder.key)),
             "catalogue": "", "hosts": ""}]  # fmt: skip
    for name, each in folder.trusted().items():
        rows.append({"organisation": name, "key": each.key, "catalogue": each.catalogue, "hosts": " ".join(each.hosts)})
    _print(rows, args)


def serve(args: Namespace) -> None:
    """Replaces this process by the sharing daemon; never returns."""
    folder, hook = sharing_folder(), RuntimeHook(args.hops_conn_id, runtime=args.runtime)
    folder.settings()
    python = runtime_python(hook.settings.runtime)
    arguments = {
        "store": hook.settings.store,
        "storage_options": dict(hook.settings.storage_options),
        "folder": str(folder.path),
    }
    descriptor = os.memfd_create("arguments", 0)  # inherited, so the store's credentials are in no file
    os.write(descriptor, json.dumps(arguments).encode())
    env = runtime_variables(hook.settings.runtime)
    env["HOPS_SHARING_ARGUMENTS"] = f"/proc/self/fd/{descriptor}"
    command = module_command(python, "airflow_hops.extensions.sharing.ml.daemon")
    os.execve(command[0], command, env)


def sharing_folder() -> SharingFolder:
    """Returns the folder ``[hops] sharing``, or ``hops-sharing`` in AIRFLOW_HOME."""
    home = Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()
    configured = conf.get("hops", "sharing", fallback="") or home / "hops-sharing"
    return SharingFolder(Path(configured).expanduser().absolute())


def _fetched(records: SharingRecords, ref: DatasetRef) -> Dataset:
    """Returns a data set in the store. Raises BadInput if there is none of the name, or several."""
    organisations = [ref.organisation] if ref.organisation else records.store.names(records.store.internal("_datasets"))
    matches = [each for name in organisations if (each := records.fetched(replace(ref, organisation=name)))]
    if len(matches) != 1:
        there = " and ".join(str(each.ref) for each in matches)
        raise BadInput(f"data set {str(ref)!r}: the store has {there or 'none of that name'}")
    return matches[0]


def _say_progress(transfer: Transfer, shown: list[str]) -> None:
    share = transfer.done_bytes / transfer.size_bytes if transfer.size_bytes else 1.0
    whose = ", ".join(sorted({peer.organisation for peer in transfer.peers})) or "no peer"
    line = f"{transfer.state}: {share:.0%}, {decimal(int(transfer.down_bytes_s))}/s from {whose}"
    if shown[-1:] != [line]:
        shown.append(line)
        print(line, file=sys.stderr, flush=True)


def _print(rows: list[dict[str, str]], args: Namespace) -> None:
    AirflowConsole().print_as(rows, output=args.output)
