"""Organisations for tests of sharing: each with its store, key, catalogue on a plain web server, and daemon."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from waiting import wait_for

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.artifacts.properties import SnapshotProperties
from airflow_hops.core.processes.programs import module_command
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.sharing.core.entries import DatasetEntry, DatasetRef
from airflow_hops.extensions.sharing.core.records import DATA, SharingRecords, Transfer
from airflow_hops.extensions.sharing.core.settings import SETTINGS_NAME, SharingFolder, Trusted
from airflow_hops.extensions.sharing.core.statements import ENTRY, create_key, load_key, public_text, sign
from airflow_hops.runner.launchers.local import runtime_variables

HTTP_PORT, PEER_PORT = 8080, 6881
ROWS = 2000
MAKE_ENTRY = """
import hashlib, json, pathlib, sys
from airflow_hops.extensions.sharing.core.records import SharingRecords
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.sharing.ml.transport import share_files
of = json.loads(sys.argv[1])
folder, records = pathlib.Path(of["folder"]), SharingRecords(ArtifactStore(of["store"]))
files = {p.relative_to(folder).as_posix(): p for p in sorted(folder.rglob("*")) if p.is_file()}
torrent, info_hash = share_files(folder, [(name, p.stat().st_size) for name, p in files.items()], pathlib.Path(of["data"]))
listed = []
for name, path in files.items():
    with path.open("rb") as stream:
        listed.append({"path": name, "size_bytes": path.stat().st_size, "sha256": hashlib.file_digest(stream, "sha256").hexdigest()})
preview = {"files": listed, "types": {"table": {}}, "schema": {}, "statistics": {}, "sample": {}, "card": "", "properties": {}}
print(json.dumps({
    "info_hash": info_hash, "size_bytes": sum(f["size_bytes"] for f in listed), "files": len(listed),
    "torrent": records.keep_document(torrent),
    "preview": records.keep_document(json.dumps({**preview, **of["preview"]}).encode()),
}))
"""  # noqa: E501


class Organisation:
    """An organisation with the host ``address``, in a network namespace if one is named.

    Attributes:
        store: Its artifact store.
        folder: Its settings and keys.
    """

    def __init__(
        self,
        name: str,
        home: Path,
        address: str,
        runtime: Path,
        *,
        namespace: str | None = None,
        store: ArtifactStore | None = None,
        **settings: Any,
    ) -> None:
        self.name, self.home, self.address, self.runtime = name, home, address, runtime
        self._within = ["ip", "netns", "exec", namespace] if namespace else []
        self.store = store or ArtifactStore(str(home / "store"), local_cache=str(home / "cache"))
        self.records = SharingRecords(self.store)
        self.folder = SharingFolder(home / "sharing")
        create_key(self.folder.key)
        self.settings: dict[str, Any] = {
            "organisation": name, "listen": f"{address}:{PEER_PORT}", "exchange_s": 0.3, "stall_s": 60, **settings,
        }  # fmt: skip
        self.write_settings()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.daemon: subprocess.Popen[bytes] | None = None
        self.log = home / "daemon.log"

    @property
    def key(self) -> str:
        return public_text(load_key(self.folder.key))

    @property
    def catalogue(self) -> str:
        return f"http://{self.address}:{HTTP_PORT}"

    @property
    def data(self) -> Path:
        """The daemon's folder of files."""
        return self.folder.data(self.folder.settings())

    def write_settings(self, **changed: Any) -> None:
        self.settings |= changed
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in self.settings.items()]
        (self.folder.path / SETTINGS_NAME).write_text("".join(lines))

    def trust(self, *others: Organisation) -> None:
        for other in others:
            self.folder.trust(Trusted(other.name, other.key, other.catalogue))

    def run(self, command: Sequence[str], **more: Any) -> subprocess.Popen[bytes]:
        """Starts a program in the namespace; it ends with the test."""
        process = subprocess.Popen([*self._within, *command], **more)
        self.processes.append(process)
        return process

    def serve_catalogue(self) -> None:
        """Starts the web server, unless it runs."""
        public = self.home / "store" / "_state" / "sharing" / "public"
        if not self.processes:
            public.mkdir(parents=True, exist_ok=True)
            self.records.update_catalogue(load_key(self.folder.key))
            server = ["-m", "http.server", "--bind", self.address, "--directory", str(public), str(HTTP_PORT)]
            self.run([sys.executable, *server], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def start(self, python_path: Path | None = None) -> None:
        """Starts the daemon and the web server; ``python_path`` is a folder of modules for the daemon."""
        self.serve_catalogue()
        arguments = self.home / "arguments.json"
        tick_s = 0.1 if self.store.is_local else 0.5
        values = {"store": self.store.root, "storage_options": dict(self.store.storage_options)}
        arguments.write_text(json.dumps({**values, "folder": str(self.folder.path), "tick_s": tick_s}))
        earlier = self.records.daemon()
        environment = {**runtime_variables(self.runtime), "HOPS_SHARING_ARGUMENTS": str(arguments)}
        if python_path is not None:
            environment["PYTHONPATH"] += f":{python_path}"
        with self.log.open("ab") as log:
            command = module_command(self.runtime / "bin" / "python", "airflow_hops.extensions.sharing.ml.daemon")
            self.daemon = self.run(command, env=environment, stdout=log, stderr=log)

        def is_up() -> bool:
            assert self.daemon is not None
            assert self.daemon.poll() is None, self.log.read_text()
            now = self.records.daemon()
            return now is not None and (earlier is None or now.at > earlier.at)

        wait_for(is_up, self.log.read_text)

    def kill(self) -> None:
        assert self.daemon is not None
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()

    def share(self, folder: Path, name: str = "numbers", version: int = 1, preview: Any = None, **more: Any) -> Any:
        """Publishes any files, with a preview that has their checksums only, and returns the entry."""
        arguments = {"folder": str(folder), "store": self.store.root, "data": str(self.data), "preview": preview or {}}
        python = str(self.runtime / "bin" / "python")
        made = subprocess.run(
            [python, "-c", MAKE_ENTRY, json.dumps(arguments)],
            env=runtime_variables(self.runtime),
            stdout=subprocess.PIPE,
            check=True,
        )
        values: dict[str, Any] = {
            "name": name, "version": version, "licence": "CC0-1.0", "description": "Numbers.", "kind": "snapshot",
            "created_at": "2026-01-01T00:00:00Z", "rows": 1, **json.loads(made.stdout),
        }  # fmt: skip
        entry = DatasetEntry.from_dict({**values, **more})
        self.publish(entry.to_dict())
        return entry

    def publish(self, entry: Mapping[str, Any]) -> None:
        statement = sign(load_key(self.folder.key), ENTRY, entry)
        self.records.write(statement, "published", f"{entry['name']}@{entry['version']}.json")
        self.records.update_catalogue(load_key(self.folder.key))

    def ask(self, ref: str, wants: str = DATA) -> None:
        """Asks its daemon for a data set, once its catalogue is known."""
        dataset = wait_for(lambda: self.records.find(DatasetRef.parse(ref)), self.log.read_text)
        self.records.request(dataset, wants)

    def transfer(self, ref: str) -> Transfer | None:
        dataset = self.records.find(DatasetRef.parse(ref))
        return self.records.transfer(dataset) if dataset else None

    def wait_until(self, ref: str, *states: str, timeout_s: float = 60.0) -> Transfer:
        """Waits until a transfer has one of the states."""

        def reached() -> Transfer | None:
            transfer = self.transfer(ref)
            return transfer if transfer is not None and transfer.state in states else None

        return wait_for(reached, lambda: f"{self.transfer(ref)}\n{self.log.read_text()[-3000:]}", timeout_s)

    def fetched(self, ref: str) -> Path:
        """The folder of a fetched data set."""
        return Path(self.records.place(DatasetRef.parse(ref)).removeprefix("file://"))


def random_files(folder: Path, **sizes: int) -> Path:
    """Writes files of random bytes, by table."""
    for number, (name, size) in enumerate(sizes.items()):
        path = folder / "table" / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        generator = random.Random(number)
        with path.open("wb") as file:
            for begin in range(0, size, 1 << 20):
                file.write(generator.randbytes(min(1 << 20, size - begin)))
    return folder


def same_files(one: Path, other: Path) -> bool:
    """Whether two folders have the same files, beside the record of a fetched data set."""
    contents = [
        {p.relative_to(folder): p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != "dataset.json"}
        for folder in (one, other)
    ]
    return contents[0] == contents[1]


def loopback(number: int) -> str:
    """An address of the loopback interface that only this process's tests use."""
    return f"127.{1 + (os.getpid() >> 8) % 250}.{os.getpid() % 256}.{number}"


def make_snapshot(organisation: Organisation, dag_id: str = "flights") -> Artifact:
    """A snapshot of flights, whose delays depend on the organisation's name."""
    producer = Producer(dag_id, "run-1", "ingest")
    with organisation.store.create(organisation.store.address(producer, "snapshot"), "snapshot", producer) as writer:
        for table, rows in (("flights", ROWS), ("planes", 10)):
            (writer.path / table).mkdir()
            columns = {
                "id": pa.array(range(rows), pa.int64()),
                "at": pa.array(
                    [datetime(2013, 1, 1 + n % 28, tzinfo=UTC) for n in range(rows)], pa.timestamp("us", "UTC")
                ),
                "delay": pa.array(
                    [None if n % 10 == 0 else float(n % 50) + sum(organisation.name.encode()) % 7 for n in range(rows)]
                ),
                "dest": pa.array([("IAH", "MIA", "BQN")[n % 3] for n in range(rows)]),
            }
            pq.write_table(pa.table(columns), writer.path / table / "part-00000.parquet")
        return writer.commit(properties=SnapshotProperties(None, ("flights", "planes")).to_dict())
