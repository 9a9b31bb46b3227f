"""Records the inputs of runs: their code, parameters and libraries."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import airflow_hops
from airflow_hops.airflow_internals.tasks import dag_bundle, redact
from airflow_hops.core.errors import HopsError
from airflow_hops.core.profiles import profile_of
from airflow_hops.core.redaction import LEAST_CHARACTERS, REDACTED, masked, secrets_in
from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.core.steps.run_record import RunRecord, has_record, is_recorded, record_key, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import now
from airflow_hops.runner.environments.named import packages_from_elsewhere, packages_of, python_version
from airflow_hops.runner.user_code.fingerprints import user_code

_URI = re.compile(r"[a-z][a-z\d+.:-]*://\S+", re.IGNORECASE)
_QUERY = re.compile(r"\?[\w.~%+-]+=")
_OPTION = re.compile("key|sas|token|secret|password|account", re.IGNORECASE)


def record_run(store: ArtifactStore, runtime: Path, spec: StepSpec) -> str | None:
    """Writes the record of a step that is about to begin, unless it exists.

    Returns:
        Reason why the record or its code is missing; None if it is complete.
    """
    if not is_recorded(spec):
        return None
    dag_id, key = spec.producer.dag_id, record_key(spec.cache_key_parts, spec.inputs)
    try:
        if has_record(store, dag_id, key):
            return None
        params, secrets = without_secrets(spec.params)
        bundle, bundle_version = dag_bundle()
        record = RunRecord(
            dag_id=dag_id,
            step=spec.step,
            entry=spec.entry,
            params=params,
            secrets=secrets,
            inputs={role: [artifact.to_dict() for artifact in values] for role, values in spec.inputs.items()},
            output_kind=spec.output.kind if spec.output else None,
            parts=spec.cache_key_parts,
            package_version=airflow_hops.__version__,
            python=python_version(runtime),
            profile=profile.name if (profile := profile_of(runtime)) else None,
            packages=packages_of(runtime),
            from_elsewhere=packages_from_elsewhere(runtime),
            started=now(),
            bundle=bundle,
            bundle_version=bundle_version,
        )
        code = user_code(spec, runtime)
        if code.fingerprint != spec.cache_key_parts["user code"]:
            write_record(store, key, record, None)
            return f"its code cannot be stored with it: {'; '.join(code.unknown) or 'it is being changed'}"
        write_record(
            store, key, replace(record, code_paths=code.folders, code_left_out=code.left_out, script=code.script), code
        )
    except (OSError, HopsError) as error:
        return f"it cannot be stored: {error}"
    if not code.left_out:
        return None
    left = f"{len(code.left_out)} files of its code, such as {code.left_out[0]}"
    return f"not stored with it, since they are too large or links that lead out of the user code: {left}"


def without_secrets(params: Mapping[str, object]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Returns the parameters with secrets replaced by None, and the paths of the secrets.

    A secret is a value that Airflow masks in logs, that :func:`~airflow_hops.core.redaction.masked` masks, a
    URI with a query, a storage option whose name indicates a secret, or a text that contains another secret.
    """
    secrets: list[str] = []
    named = [text for text in secrets_in(params) if len(text) >= LEAST_CHARACTERS]

    def compare(value: object, shown: object, path: str) -> Any:
        if isinstance(value, str):
            repeats = "\n" not in value and any(text in value for text in named)
            shown = None if repeats or _is_secret(value, path) else shown
        if isinstance(value, Mapping) and isinstance(shown, Mapping):
            return {name: compare(item, shown.get(name), f"{path}/{name}") for name, item in value.items()}
        if isinstance(value, list | tuple) and isinstance(shown, list | tuple):
            pairs = zip(value, shown, strict=True)
            return [compare(item, other, f"{path}/{place}") for place, (item, other) in enumerate(pairs)]
        if value == shown or (isinstance(value, float) and value != value):
            return value
        secrets.append(path.removeprefix("/"))
        return None

    return compare(params, redact(_masked(params)), ""), tuple(secrets)


def _masked(value: object, shown: object = ...) -> Any:
    """Masks secrets recognised by name or content, except in code."""
    shown = masked(value) if shown is ... else shown
    if isinstance(value, Mapping) and isinstance(shown, Mapping):
        return {name: _masked(item, shown[name]) for name, item in value.items()}
    if isinstance(value, list | tuple) and isinstance(shown, list):
        return [_masked(*pair) for pair in zip(value, shown, strict=True)]
    is_code = isinstance(value, str) and "\n" in value and shown != REDACTED and "PRIVATE KEY-----" not in value
    return value if is_code else shown


def _is_secret(value: str, path: str) -> bool:
    _, options, name = path.partition("/storage_options/")
    if options and _OPTION.search(name):
        return bool(value)
    return bool(_URI.fullmatch(value) and _QUERY.search(value))
