"""Where the checkpoints of a training that has not finished outlive its tries: ``<store>/_state/checkpoints``."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from airflow_hops.artifacts import cache_key
from airflow_hops.hops.checkpoints import CHECKPOINT_NAME, Checkpoint, latest_checkpoint
from airflow_hops.protocol import StepSpec
from airflow_hops.store import ArtifactStore


class CheckpointState:
    """The checkpoints of one task in one DAG run, for one state of code, parameters and inputs.

    Args:
        store: The artifact store.
        uri: Folder of the store.
    """

    def __init__(self, store: ArtifactStore, uri: str) -> None:
        import fsspec

        self.uri = uri
        self._fs, self._path = fsspec.url_to_fs(unquote(uri) if store.is_local else uri, **store.storage_options)

    @classmethod
    def of(cls, spec: StepSpec, store: ArtifactStore) -> CheckpointState:
        """The state of a step: another one as soon as its code, parameters or inputs change."""
        producer = spec.producer
        task = producer.task_id if producer.map_index < 0 else f"{producer.task_id}@{producer.map_index}"
        parts = {
            **{f"input {role}": ",".join(a.fingerprint for a in given) for role, given in spec.inputs.items()},
            "parameters": hashlib.sha256(json.dumps(spec.params, sort_keys=True).encode()).hexdigest(),
            **spec.cache_key_parts,
        }
        key = cache_key(parts)[:16]
        return cls(store, store.uri("_state", "checkpoints", producer.dag_id, producer.run_id, task, key))

    def fetch(self, folder: Path) -> Checkpoint | None:
        """Copies the latest whole checkpoint to a local folder.

        Returns:
            It, or None when there is none.
        """
        whole = sorted(self._fs.glob(f"{self._path}/epoch-*/{CHECKPOINT_NAME}"))
        if not whole:
            return None
        source = whole[-1].rpartition("/")[0]
        target = folder / source.rpartition("/")[2]
        target.mkdir(parents=True, exist_ok=True)
        for file in self._fs.find(source):
            self._fs.get_file(file, str(target / file.rpartition("/")[2]))
        return latest_checkpoint(folder)

    def publish(self, checkpoint: Path) -> None:
        """Copies a checkpoint here, the file that says it is whole last, and removes those before it."""
        target = f"{self._path}/{checkpoint.name}"
        before = self._folders()
        self._fs.makedirs(target, exist_ok=True)
        for file in sorted(checkpoint.iterdir(), key=lambda file: file.name == CHECKPOINT_NAME):
            # Under another name first: on a local disk a kill would leave the file half written.
            self._fs.put_file(str(file), f"{target}/{file.name}.part")
            self._fs.mv(f"{target}/{file.name}.part", f"{target}/{file.name}")
        for old in before:
            if old.rpartition("/")[2] != checkpoint.name:
                self._fs.rm(old, recursive=True)

    def clear(self) -> None:
        """Removes all of it: the training has finished."""
        if self._fs.exists(self._path):
            self._fs.rm(self._path, recursive=True)

    def _folders(self) -> list[Any]:
        self._fs.invalidate_cache()
        return sorted(path for path in self._fs.glob(f"{self._path}/epoch-*"))
