"""Cache of steps: a task takes the artifact of an earlier run with the same code, parameters and inputs."""

# The order on a hit: the task first writes ``uses.json``, and then reads the manifest. A garbage collection hides the
# manifest before it reads ``uses.json`` a second time. So either the collection sees the use and restores the manifest,
# or the task finds no manifest, and runs its step. An entry is written after the artifact: a kill in between leaves an
# artifact without an entry, which costs a later run only time. Entries are replaced atomically, without a lock: of two
# runs with the same key either entry is right.

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from airflow_hops.core.artifacts.artifact import CUT_SHORT, Artifact, Producer, as_cached, cache_key
from airflow_hops.core.errors import BadInput, UnreadableText
from airflow_hops.core.store.artifact_store import ArtifactStore
from airflow_hops.core.store.uses import record_uses


def find_cached(
    store: ArtifactStore, producer: Producer, parts: Mapping[str, str], inputs: Iterable[Artifact] = ()
) -> tuple[Artifact | None, str]:
    """Looks for an artifact that the same task made from the same parts.

    Args:
        store: The store.
        producer: The task.
        parts: The parts of the cache key.
        inputs: The task's inputs, which it uses if there is no such artifact.

    Returns:
        The artifact, marked as cached, or None; and the explanation: where the hit came from, or which parts differ
        from the task's last run.
    """
    folder = _folder(store, producer)
    path = f"{folder}/{cache_key(parts)}.json"
    try:
        entry = store.read_json(path)
        artifact = Artifact.from_dict(entry["artifact"])
        record_uses(
            store, producer, [artifact, *inputs]
        )  # first, since a garbage collection may remove the manifest meanwhile
        manifest = store.manifest(artifact.uri)
        if manifest.fingerprint != artifact.fingerprint:
            return None, f"{artifact.uri} has changed since it was recorded"
        if (damage := store.damage(artifact.uri, manifest)) is not None:
            return None, str(damage)
        return as_cached(artifact), f"same {', '.join(sorted(parts))} as in run {entry['run_id']}"
    except FileNotFoundError:
        return None, _what_changed(store, folder, parts)
    except BadInput as error:
        return None, f"{path} cannot be read ({error})" if isinstance(error, UnreadableText) else str(error)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return None, f"{path} cannot be read ({error!r})"


def record_cached(store: ArtifactStore, producer: Producer, parts: Mapping[str, str], artifact: Artifact) -> None:
    """Records that ``parts`` made ``artifact``, unless its work was cut short."""
    if CUT_SHORT in artifact.properties:
        return
    folder = _folder(store, producer)
    entry = json.dumps({"artifact": artifact.to_dict(), "parts": dict(parts), "run_id": producer.run_id})
    store.write_text(f"{folder}/{cache_key(parts)}.json", entry)
    store.write_text(f"{folder}/latest.json", entry)


def _folder(store: ArtifactStore, producer: Producer) -> str:
    return store.internal("_cache", producer.dag_id, producer.task_id)


def _what_changed(store: ArtifactStore, folder: str, parts: Mapping[str, str]) -> str:
    try:
        latest = store.read_json(f"{folder}/latest.json")
        known = latest["parts"]
    except FileNotFoundError:
        return "the task has not run before"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{folder}/latest.json cannot be read ({error!r})"
    changed = sorted(name for name in {*known, *parts} if known.get(name) != parts.get(name))
    return f"changed since run {latest['run_id']}: {', '.join(changed)}"
