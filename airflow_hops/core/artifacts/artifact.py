"""Artifacts: results of steps, in the form that both environments use.

Only the standard library is imported, since both the Airflow side and the ML side use this module. A step returns an
:class:`Artifact`, and its folder in the store contains its :class:`Manifest`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from typing import Any

from airflow_hops.core.errors import BadInput, RowsNotConserved, UnreadableFile, UnreadableText
from airflow_hops.core.json_files import parse_json
from airflow_hops.core.redaction import without_password

MOST_BYTES = 236
"""Maximum length of a segment, with which ``.<segment>.json.<12 digits>``, a temporary file, fits a file system."""

_ESCAPED = re.compile(r"^[._]|^E(?=xperiments$)|[^\w.+@:-]")
_ESCAPES = re.compile(r"(?:![0-9A-F]{2})+")
_SEGMENT = re.compile(r"[\w.+@~!-]+")

MANIFEST_NAME = "manifest.json"
FORMAT_VERSION = 1
PROFILE_NAMES = ("base", "current")
"""Names of the profiles of the runtime environment (:mod:`airflow_hops.core.profiles`), the oldest first."""


CUT_SHORT = "cut_short"
"""Property of an artifact: why the work that made it ended early. The step cache excludes such artifacts."""


@dataclass(frozen=True)
class Producer:
    """The Airflow task instance that made an artifact.

    Attributes:
        map_index: Index of a mapped task; -1 for other tasks.
        iteration: Iteration of the loop that the task is in, from 0; -1 outside a loop.
    """

    dag_id: str = "notebook"
    run_id: str = "interactive"
    task_id: str = "step"
    map_index: int = -1
    try_number: int = 1
    iteration: int = -1

    @property
    def task(self) -> str:
        """Returns the task's path segment, ``<task>``.

        Mapped tasks have ``<task>@<index>``, tasks in loops ``<task>@i<iteration>``, mapped ones
        ``<task>@i<iteration>@<index>``.
        """
        iteration = f"@i{self.iteration}" if self.iteration >= 0 else ""
        return f"{self.task_id}{iteration}" + (f"@{self.map_index}" if self.map_index >= 0 else "")

    @property
    def instance(self) -> str:
        """Returns the text after the task's id in :attr:`task`; ``-1`` if it is neither mapped nor in a loop."""
        return self.task.removeprefix(self.task_id).removeprefix("@") or "-1"

    @classmethod
    def of_task(cls, dag_id: str, run_id: str, task: str) -> Producer:
        """Returns the task instance with a path segment; see :attr:`task`."""
        task_id, *indexes = task.split("@")
        positions = {"iteration" if each.startswith("i") else "map_index": int(each.lstrip("i")) for each in indexes}
        return cls(dag_id, run_id, task_id, **positions)


@dataclass(frozen=True)
class FileEntry:
    """A file of an artifact: path relative to the artifact's folder, size, and SHA-256 in hex."""

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True)
class RowCounts:
    """Rows that a step read, wrote and rejected, the latter by reason.

    Example:
        >>> from airflow_hops import RowCounts
        >>> RowCounts(1000, 990, {"no label": 10}).rows_rejected
        10
    """

    rows_in: int
    rows_out: int
    rejected: Mapping[str, int] = field(default_factory=dict)

    @property
    def rows_rejected(self) -> int:
        """Returns the number of rejected rows."""
        return sum(self.rejected.values())

    def check(self, what: str) -> RowCounts:
        """Returns itself. Raises RowsNotConserved if rows in differ from rows out plus rows rejected."""
        if self.rows_in != self.rows_out + self.rows_rejected:
            raise RowsNotConserved(
                self.rows_in,
                self.rows_out + self.rows_rejected,
                f"{what}: {self.rows_in} rows in, but {self.rows_out} out and {self.rows_rejected} rejected "
                f"({dict(self.rejected)}); {self.rows_in - self.rows_out - self.rows_rejected} unaccounted for",
            )
        return self

    def check_rejected(self, max_rejected: float, what: str) -> None:
        """Raises BadInput if a single reason rejects more than a share ``max_rejected`` (0 to 1) of the input rows."""
        by_reason = sorted(self.rejected.items(), key=lambda item: -item[1])
        if by_reason and by_reason[0][1] > max_rejected * self.rows_in:
            reason, rows = by_reason[0]
            raise BadInput(
                f"{what}: {rows} of {self.rows_in} rows ({rows / self.rows_in:.1%}) are rejected for {reason!r}, more "
                f"than max_rejected={max_rejected:g} allows; rejected in all: "
                f"{', '.join(f'{reason} {rows}' for reason, rows in by_reason)}. Correct the data, or raise "
                "max_rejected if so many rows should be rejected"
            )


def total_rows(rows: Mapping[str, RowCounts], properties: Mapping[str, object]) -> RowCounts | None:
    """Returns the total row counts of an artifact; None if no rows were counted.

    A step that splits a table counts both the table and its ``splits``; only the table's rows are summed.
    """
    splits = properties.get("splits")
    tables = [counts for name, counts in rows.items() if not isinstance(splits, list | tuple) or name not in splits]
    counted = tables or list(rows.values())
    if not counted:
        return None
    rejected: Counter[str] = Counter()
    for counts in counted:
        rejected.update(counts.rejected)
    return RowCounts(sum(c.rows_in for c in counted), sum(c.rows_out for c in counted), dict(rejected))


@dataclass(frozen=True)
class Artifact:
    """A reference to an artifact: small enough for XCom, an asset event or another artifact's lineage.

    Attributes:
        uri: Address of the artifact's folder in the store.
        kind: Kind in TFX's terms: ``snapshot``, ``examples``, ``statistics``, ``schema``, ``anomalies``,
            ``transform_graph``, ``model``, ``evaluation``, ``skew`` and so on.
        fingerprint: SHA-256 over kind and contents; equal contents have equal fingerprints in any place.
        metrics: Numbers to show without opening the artifact.
        rows: Row counts by table, split or window.
        properties: Small JSON facts (window, label, signature).
        cached: Whether the step was skipped because an earlier run made the same artifact.
    """

    uri: str
    kind: str
    fingerprint: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    rows: Mapping[str, RowCounts] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    cached: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON value for XCom."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Artifact:
        """Reads the JSON value.

        Raises:
            BadInput: ``value`` is not an artifact reference.
        """
        try:
            return cls(
                uri=without_password(value["uri"])[0],
                kind=value["kind"],
                fingerprint=value["fingerprint"],
                metrics=dict(value.get("metrics") or {}),
                rows={name: RowCounts(**counts) for name, counts in (value.get("rows") or {}).items()},
                properties=dict(value.get("properties") or {}),
                cached=bool(value.get("cached", False)),
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(
                f"expected an artifact (a mapping with uri, kind and fingerprint), found {value!r}; "
                "pass the output of an upstream operator"
            ) from error


def as_artifacts(role: str, value: Any) -> tuple[Artifact, ...]:
    """Returns the artifacts in an input.

    Args:
        role: Role of the input, for the message.
        value: An artifact, its dict, or a sequence of these.

    Raises:
        BadInput: the value is something else.
    """
    # The outputs of a mapped task are a lazy sequence, which is neither list nor tuple.
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    try:
        return tuple(v if isinstance(v, Artifact) else Artifact.from_dict(v) for v in values)
    except BadInput as error:
        raise BadInput(f"input {role!r}: {error}") from error


@dataclass(frozen=True)
class Manifest:
    """The contents of ``manifest.json``. It is written last: a folder without one is not an artifact.

    ``cost`` is the cost of the step: ``core_s``, CPU seconds, and ``gpu_s``, seconds times GPUs, empty if
    unknown.
    ``profile`` is that of the environment that wrote it; None if unknown.
    """

    kind: str
    producer: Producer
    inputs: Mapping[str, tuple[Artifact, ...]]
    files: tuple[FileEntry, ...]
    created_at: str
    rows: Mapping[str, RowCounts] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    properties: Mapping[str, Any] = field(default_factory=dict)
    cache_key_parts: Mapping[str, str] = field(default_factory=dict)
    cost: Mapping[str, float] = field(default_factory=dict)
    format_version: int = FORMAT_VERSION
    profile: str | None = None

    @property
    def fingerprint(self) -> str:
        """Returns the SHA-256 over the kind and the files' paths and checksums."""
        return fingerprint_of(self.kind, self.files)

    def reference(self, uri: str) -> Artifact:
        """Returns the reference to this artifact."""
        return Artifact(uri, self.kind, self.fingerprint, self.metrics, self.rows, self.properties)

    def to_json(self) -> str:
        """Returns the file's text."""
        value = asdict(self)
        # Lineage has references without facts, which are in the upstream manifests.
        value["inputs"] = {
            name: [{"uri": a.uri, "kind": a.kind, "fingerprint": a.fingerprint} for a in artifacts]
            for name, artifacts in self.inputs.items()
        }
        return json.dumps({**value, "fingerprint": self.fingerprint}, indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str, source: str) -> Manifest:
        """Reads the text of a manifest; ``source`` is its address for the message.

        Raises:
            BadInput: the text is not a manifest, or has a newer format.
        """
        try:
            value = parse_json(text, source)
            if value["format_version"] > FORMAT_VERSION:
                raise BadInput(
                    f"{source}: format_version is {value['format_version']}, this version reads up to {FORMAT_VERSION}"
                )
            if (profile := value.get("profile")) not in (None, *PROFILE_NAMES):
                raise BadInput(
                    f"{source}: written by the profile {profile!r} of the runtime environment, this version has "
                    f"{' and '.join(PROFILE_NAMES)}; upgrade airflow-hops here to the version of the workers"
                )
            _check_facts(value)
            return cls(
                kind=value["kind"],
                producer=Producer(**value["producer"]),
                inputs={n: tuple(Artifact.from_dict(a) for a in refs) for n, refs in value["inputs"].items()},
                files=tuple(FileEntry(**entry) for entry in value["files"]),
                created_at=value["created_at"],
                rows={name: RowCounts(**counts) for name, counts in value["rows"].items()},
                metrics=value["metrics"],
                properties=value["properties"],
                cache_key_parts=value["cache_key_parts"],
                cost=value.get("cost", {}),
                format_version=value["format_version"],
                profile=profile,
            )
        except UnreadableText as error:
            raise UnreadableFile(source, f": not an artifact manifest: {error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise UnreadableFile(source, f": not an artifact manifest ({type(error).__name__}: {error})") from error


def _check_facts(value: Mapping[str, Any]) -> None:
    """Raises an error if a field of a manifest has an unexpected type."""
    datetime.fromisoformat(value["created_at"])
    inputs = [artifact for artifacts in value["inputs"].values() for artifact in artifacts]
    texts = {
        "kind": [value["kind"]],
        "producer": [value["producer"][name] for name in ("dag_id", "run_id", "task_id")],
        "cache_key_parts": value["cache_key_parts"].values(),
        "files": [entry["path"] for entry in value["files"]],
        "inputs": [artifact[name] for artifact in inputs for name in ("kind", "fingerprint")],
    }
    counts = [each for rows in value["rows"].values() for each in (rows["rows_in"], *rows["rejected"].values())]
    checks: list[tuple[str, Iterable[Any], Callable[[Any], bool], str]] = [
        *((name, items, lambda item: isinstance(item, str), "text") for name, items in texts.items()),
        ("rows", counts, lambda item: isinstance(item, int) and abs(item) < 2**63, "a number of rows"),
        ("metrics, cost", [value["metrics"], value.get("cost", {})], lambda item: isinstance(item, dict), "an object"),
        ("properties", [value["properties"]], lambda item: isinstance(item, dict), "an object"),
    ]
    for name, items, accepts, expected in checks:
        for item in items:
            if not accepts(item):
                raise TypeError(f"{name}: found {item!r:.80}, expected {expected}")


def fingerprint_of(kind: str, files: Iterable[FileEntry]) -> str:
    """Returns the SHA-256 (hex) over the kind and the sorted paths and checksums of the files."""
    digest = hashlib.sha256(kind.encode())
    for entry in sorted(files, key=lambda entry: entry.path):
        digest.update(f"\n{entry.path}\0{entry.sha256}".encode())
    return digest.hexdigest()


def cache_key(parts: Mapping[str, str]) -> str:
    """Returns a step's key: SHA-256 (hex) over its named parts (code, parameters, each input's fingerprint)."""
    return hashlib.sha256(json.dumps(dict(parts), sort_keys=True).encode()).hexdigest()


def as_cached(artifact: Artifact) -> Artifact:
    """Returns the reference marked as taken from an earlier run."""
    return replace(artifact, cached=True)


def segment(name: str) -> str:
    """Returns the segment of an id: different ids have different ones, and a segment leads back to its id.

    Letters and digits of any language, ``_``, ``-``, ``.``, ``+`` and ``@`` stay, ``:`` becomes ``~``, and other
    characters become ``!`` and two hexadecimal digits for each byte of UTF-8. So do ``_`` and ``.`` at the beginning,
    since such names are the store's own and hidden files.

    Raises:
        BadInput: the id is empty, or its segment too long for a file system.
    """
    result = _ESCAPED.sub(lambda match: "".join(f"!{byte:02X}" for byte in _bytes(match[0])), name).replace(":", "~")
    if not result:
        raise BadInput("an id is empty; expected at least one character, since it names a folder")
    if (size := len(_bytes(result))) > MOST_BYTES:
        raise BadInput(
            f"{name[:60]!r}… has {size} bytes as the name of a folder; expected at most {MOST_BYTES}; shorten it"
        )
    return result


def name_in(segment: str) -> str:
    """Returns the id of a segment."""
    return _ESCAPES.sub(
        lambda match: bytes.fromhex(match[0].replace("!", "")).decode(errors="surrogatepass"), segment.replace("~", ":")
    )


def is_segment(text: str) -> bool:
    """Returns whether a text has only the characters of a segment."""
    return _SEGMENT.fullmatch(text) is not None and text not in (".", "..")


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")
