"""Stores checkpoints of an unfinished training across tries, in ``<store>/_state/checkpoints``."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import shutil
from pathlib import Path
from urllib.parse import unquote

from airflow_hops.core.artifacts.artifact import cache_key
from airflow_hops.core.errors import HopsError
from airflow_hops.core.processes.remote_files import open_url, without_markers
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.ml.training.checkpoints import (
    CHECKPOINT_GLOB,
    CHECKPOINT_NAME,
    Checkpoint,
    Position,
    check_files,
    read_checkpoint,
)

# Order of publish(): each file under a temporary name, renamed when complete; checkpoint.json last. A folder without it
# is incomplete and is ignored, overwritten by the same step, or removed with older ones. fetch() takes the newest whose
# checksums are right. Only one try of a task writes here at a time, so no lock is needed. The key of the folder
# contains code, parameters and inputs: a changed task does not resume another training.

_KEPT = 2

log = logging.getLogger(__name__)


class CheckpointState:
    """Checkpoints of one task in one DAG run, for one state of code, parameters and inputs."""

    def __init__(self, store: ArtifactStore, uri: str) -> None:
        self.uri = uri
        self._fs, self._path = open_url(unquote(uri) if store.is_local else uri, store.storage_options)

    @classmethod
    def of(cls, spec: StepSpec, store: ArtifactStore) -> CheckpointState:
        """Returns the state of a step; its key changes with code, parameters and inputs."""
        producer = spec.producer
        parts = {
            **{f"input {role}": ",".join(a.fingerprint for a in values) for role, values in spec.inputs.items()},
            "parameters": hashlib.sha256(json.dumps(spec.params, sort_keys=True).encode()).hexdigest(),
            **spec.cache_key_parts,
        }
        key = cache_key(parts)[:16]
        return cls(store, store.internal("_state", "checkpoints", producer.dag_id, producer.run_id, producer.task, key))

    def fetch(self, folder: Path) -> Checkpoint | None:
        """Copies the latest intact checkpoint, if any, into a new subfolder; skips damaged ones with a warning.

        Raises:
            BadInput: another version of this package wrote it.
        """
        for source in reversed(self._whole()):
            name = source.rpartition("/")[2]
            target = folder / name
            target.mkdir(parents=True, exist_ok=True)
            try:
                for entry in without_markers(self._fs.find(source, detail=True).values()):
                    self._fs.get_file(entry["name"], str(target / entry["name"].rpartition("/")[2]))
                check_files(target)
                return read_checkpoint(target)
            except HopsError as error:
                if not error.retryable:
                    raise
                damage = str(error).replace(str(target), f"{self.uri}/{name}")
            except OSError as error:
                damage = f"{self.uri}/{name}: cannot be read ({error})"
            log.warning("%s; training resumes from the checkpoint before it, or starts again", damage)
            shutil.rmtree(target, ignore_errors=True)
        return None

    def latest(self) -> Position | None:
        """Returns the position of the latest checkpoint; None if there is none."""
        whole = self._whole()
        if not whole:
            return None
        try:
            value = json.loads(self._fs.cat_file(f"{whole[-1]}/{CHECKPOINT_NAME}"))
            return Checkpoint.of(Path(whole[-1]), value).position
        except (OSError, ValueError, KeyError, TypeError):
            return Position(step=int(whole[-1].rpartition("-")[2]))

    def publish(self, checkpoint: Path) -> None:
        """Copies a checkpoint here, its description last as a sign of completeness; then keeps only the latest two.

        Raises:
            HopsError: it cannot be written; earlier ones are unchanged.
            FileNotFoundError: the checkpoint was deleted in the meantime.
        """
        target = f"{self._path}/{checkpoint.name}"
        try:
            self._fs.makedirs(target, exist_ok=True)
            for file in sorted(checkpoint.iterdir(), key=lambda file: file.name == CHECKPOINT_NAME):
                # Under another name first, since a kill would leave a partial file on a local disk.
                self._fs.put_file(str(file), f"{target}/{file.name}.part")
                self._fs.mv(f"{target}/{file.name}.part", f"{target}/{file.name}")
        except OSError as error:
            with contextlib.suppress(OSError):
                self._fs.rm(target, recursive=True)
            if isinstance(error, FileNotFoundError):
                raise
            raise HopsError(
                f"{self.uri}/{checkpoint.name}: the checkpoint cannot be written ({error}); free some space in the "
                "store"
            ) from error
        for old in self._folders()[:-_KEPT]:
            self._fs.rm(old, recursive=True)

    def clear(self) -> None:
        """Deletes all checkpoints after the training has finished."""
        if self._fs.exists(self._path):
            self._fs.rm(self._path, recursive=True)

    def _whole(self) -> list[str]:
        self._fs.invalidate_cache()
        result = self._fs.glob(f"{self._path}/{CHECKPOINT_GLOB}/{CHECKPOINT_NAME}")
        return sorted(path.rpartition("/")[0] for path in result)

    def _folders(self) -> list[str]:
        self._fs.invalidate_cache()
        return sorted(self._fs.glob(f"{self._path}/{CHECKPOINT_GLOB}"))
