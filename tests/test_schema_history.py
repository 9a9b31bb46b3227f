"""The versions of a frozen schema, on a local store and on S3."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_store import any_store, overwrite, remove, s3_store  # noqa: F401

from airflow_hops.core.artifacts.artifact import MANIFEST_NAME, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.schema.history import (
    SCHEMA_FILE,
    accept_schema_edit,
    freeze_schema,
    is_edited,
    publish_schema,
    restore_schema,
    schema_history,
    schema_in_force,
    schema_text,
)
from airflow_hops.core.store import ArtifactStore, kept_version

FORK = multiprocessing.get_context("fork")
PRODUCER = Producer("flights", "run-1", "schema")


def text_of(*features: str) -> str:
    return "".join(f'feature {{ name: "{name}" type: INT }}\n' for name in features)


def address(store: ArtifactStore) -> str:
    return store.frozen_schema("flights", "schema")


def freeze(store: ArtifactStore, text: str, **facts: Any) -> Any:
    facts = {"features": ["a"], "properties": {"label": "late"}, **facts}
    return freeze_schema(store, address(store), text, producer=PRODUCER, note="inferred by run run-1", **facts)


def versions_of(store: ArtifactStore) -> list[tuple[int, str, str, bool]]:
    return [(v.version, v.approved_by, v.note, v.in_force) for v in schema_history(store, address(store))]


@pytest.mark.slow
def test_versions_record_author_time_and_reason(any_store: ArtifactStore) -> None:  # noqa: F811
    uri = address(any_store)
    first = freeze(any_store, text_of("a"))
    assert freeze(any_store, text_of("b")) == first, "a schema is frozen once"
    second = publish_schema(
        any_store, uri, text_of("a", "é"), approved_by="ann", note="é is new", run_id="run-7", features=["a", "é"]
    )
    assert second.uri == first.uri == uri
    assert second.properties == {"label": "late", "features": ["a", "é"]}
    assert (first.metrics, second.metrics) == ({"features": 1}, {"features": 2})
    assert versions_of(any_store) == [(1, "", "inferred by run run-1", False), (2, "ann", "é is new", True)]
    one, two = schema_history(any_store, uri)
    assert (one.run_id, two.run_id) == ("run-1", "run-7")
    assert one.recorded_at <= two.recorded_at and two.recorded_at.endswith("+00:00")
    assert (one.fingerprint, two.fingerprint) == (first.fingerprint, second.fingerprint)
    assert schema_text(any_store, uri, 1) == text_of("a")
    assert schema_text(any_store, uri, 2) == schema_text(any_store, uri) == text_of("a", "é")
    record = any_store.read_json(f"{uri.removesuffix('/schema')}/history/000001.json")
    assert record.keys() == {"version", "fingerprint", "sha256", "recorded_at", "approved_by", "note", "run_id"}
    with pytest.raises(BadInput, match="there is no version 3; there are 1 to 2"):
        schema_text(any_store, uri, 3)
    any_store.verify(second)


@pytest.mark.slow
def test_a_hand_edit_becomes_a_version_when_it_is_accepted_or_replaced(any_store: ArtifactStore) -> None:  # noqa: F811
    first = freeze(any_store, text_of("a"))
    uri = address(any_store)
    assert not is_edited(any_store, uri)
    assert accept_schema_edit(any_store, uri) == first
    overwrite(any_store, f"{uri}/{SCHEMA_FILE}", text_of("a", "b"))
    assert is_edited(any_store, uri)
    assert [in_force for *_, in_force in versions_of(any_store)] == [False]
    edited = accept_schema_edit(any_store, uri, features=["a", "b"])
    assert not is_edited(any_store, uri)
    assert edited.properties["features"] == ["a", "b"]
    assert versions_of(any_store) == [(1, "", "inferred by run run-1", False), (2, "", "edited by hand", True)]
    any_store.verify(edited)
    assert (any_store.local(first) / SCHEMA_FILE).read_text() == text_of("a")

    overwrite(any_store, f"{uri}/{SCHEMA_FILE}", "an edit that no run has seen\r\n")
    publish_schema(any_store, uri, text_of("c"), approved_by="ann")
    assert [note for _, _, note, _ in versions_of(any_store)][1:] == ["edited by hand", "edited by hand", ""]
    assert schema_text(any_store, uri, 3) == "an edit that no run has seen\r\n"


def test_hand_edit_found_by_another_stage_becomes_a_version(store: ArtifactStore) -> None:
    freeze(store, text_of("a"))
    uri = address(store)
    overwrite(store, f"{uri}/{SCHEMA_FILE}", text_of("b"))
    met = schema_in_force(store, uri)
    assert is_edited(store, uri), "nobody has parsed it yet"
    assert len(versions_of(store)) == 1
    parsed = accept_schema_edit(store, uri, features=["b"])
    assert parsed.fingerprint == met.fingerprint
    assert parsed.properties["features"] == ["b"]
    assert versions_of(store) == [(1, "", "inferred by run run-1", False), (2, "", "edited by hand", True)]


@pytest.mark.slow
def test_an_earlier_text_can_come_back_as_a_new_version(any_store: ArtifactStore) -> None:  # noqa: F811
    first = freeze(any_store, text_of("a"))
    uri = address(any_store)
    publish_schema(any_store, uri, text_of("b"), approved_by="ann")
    again = publish_schema(any_store, uri, text_of("a"), approved_by="bob", note="back to 1")
    assert again.fingerprint == first.fingerprint
    assert [in_force for *_, in_force in versions_of(any_store)] == [False, False, True]
    assert publish_schema(any_store, uri, text_of("a"), approved_by="bob") == again
    assert len(versions_of(any_store)) == 3, "what is in force already makes no version"


def test_schema_without_history_becomes_the_first_version(store: ArtifactStore) -> None:
    with store.create(address(store), "schema", PRODUCER) as writer:
        (writer.path / SCHEMA_FILE).write_text(text_of("a"))
        artifact = writer.commit(properties={"label": "late"})
    assert versions_of(store) == []
    assert accept_schema_edit(store, address(store)) == artifact
    assert versions_of(store) == [(1, "", "frozen by run run-1", True)]


def test_publishing_needs_a_frozen_schema_an_approver_and_the_approved_state(store: ArtifactStore) -> None:
    with pytest.raises(BadInput, match="no artifact found"):
        publish_schema(store, address(store), text_of("a"), approved_by="ann")
    freeze(store, text_of("a"))
    with pytest.raises(BadInput, match="approved_by is empty"):
        publish_schema(store, address(store), text_of("b"), approved_by="")
    first = store.manifest(address(store)).fingerprint
    publish_schema(store, address(store), text_of("a", "b"), approved_by="ann")
    with pytest.raises(BadInput, match=r"bob approved .* has changed since .* nothing was overwritten"):
        publish_schema(store, address(store), text_of("c"), approved_by="bob", replaces=first)
    assert schema_text(store, address(store)) == text_of("a", "b")
    assert [version.approved_by for version in schema_history(store, address(store))] == ["", "ann"]


def test_a_damaged_record_is_named(store: ArtifactStore) -> None:
    freeze(store, text_of("a"))
    overwrite(store, f"{address(store).removesuffix('/schema')}/history/000001.json", "{")
    with pytest.raises(BadInput, match=r"history/000001.json: not a record of a schema's version"):
        schema_history(store, address(store))


def _publish_many(store: ArtifactStore, who: str) -> None:
    for index in range(8):
        publish_schema(store, address(store), text_of("a", f"{who}{index}"), approved_by=who)


def together(store: ArtifactStore, names: str, act: Callable[[ArtifactStore, str], Any]) -> dict[str, Any]:
    """Has a process for each name act at the same time; returns what they returned."""
    barrier, results = FORK.Barrier(len(names)), FORK.Queue()

    def run(who: str) -> None:
        own = ArtifactStore(store.root)
        barrier.wait(600)
        results.put((who, act(own, who)))

    processes = [FORK.Process(target=run, args=(who,)) for who in names]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    return dict(results.get() for _ in processes)


def test_concurrent_publishers_lose_no_version(store: ArtifactStore) -> None:
    freeze(store, text_of("a"))
    together(store, "xyz", _publish_many)
    versions = schema_history(store, address(store))
    texts = {schema_text(store, address(store), v.version) for v in versions[1:]}
    assert texts == {text_of("a", f"{who}{index}") for who in "xyz" for index in range(8)}
    assert [v.version for v in versions if v.in_force] == [len(versions)] == [25]
    store.verify(store.manifest(address(store)).reference(address(store)))


def test_concurrent_first_runs_freeze_one_schema(store: ArtifactStore) -> None:
    frozen = together(store, "xy", lambda own, who: freeze(own, text_of(who)).fingerprint)
    assert frozen["x"] == frozen["y"] == store.manifest(address(store)).fingerprint
    assert len(versions_of(store)) == 1


@pytest.mark.slow
def test_deleted_schema_is_restored_not_inferred_again(any_store: ArtifactStore) -> None:  # noqa: F811
    freeze(any_store, text_of("a"))
    uri = address(any_store)
    approved = publish_schema(any_store, uri, text_of("b"), approved_by="ann", features=["b"])
    for name in (MANIFEST_NAME, SCHEMA_FILE):  # in the order in which an object store's files are replaced
        remove(any_store, f"{uri}/{name}")
        assert not any(version.in_force for version in schema_history(any_store, uri))
        if name == MANIFEST_NAME:
            retained = any_store.local(approved) / SCHEMA_FILE
            assert retained.read_text() == text_of("b"), "those who read it have it meanwhile"
        assert freeze(any_store, text_of("c")).fingerprint == approved.fingerprint
        assert any_store.manifest(uri).properties["features"] == ["b"]
    remove(any_store, f"{uri}/{SCHEMA_FILE}")
    assert publish_schema(any_store, uri, text_of("d"), approved_by="bob", replaces=approved.fingerprint)
    assert [in_force for *_, in_force in versions_of(any_store)] == [False, False, True]


@pytest.mark.slow
@pytest.mark.parametrize("exchanges", [True, False], ids=["exchange", "rename"])
@pytest.mark.parametrize("is_edited_before", [False, True], ids=["publish", "publish over an edit"])
def test_a_publisher_that_is_killed_at_any_moment_loses_nothing(
    tmp_path: Path, is_edited_before: bool, exchanges: bool
) -> None:
    texts = [text_of("a"), *([text_of("by", "hand")] if is_edited_before else []), text_of("b")]
    for moment in range(1, 100):
        store = ArtifactStore(str(tmp_path / str(moment)))
        uri = address(store)
        freeze(store, texts[0])
        overwrite(store, f"{uri}/{SCHEMA_FILE}", texts[-2])
        pid = os.fork()
        if pid == 0:
            _die_at(moment, exchanges)
            publish_schema(store, uri, texts[-1], approved_by="ann", features=["b"])
            os._exit(0)
        finished = os.waitpid(pid, 0)[1] == 0
        assert restore_schema(store, uri)
        assert schema_text(store, uri) in texts[-2:]
        publish_schema(store, uri, texts[-1], approved_by="ann", features=["b"])
        versions = schema_history(store, uri)
        assert [schema_text(store, uri, version.version) for version in versions] == texts, moment
        assert [version.in_force for version in versions] == [False] * (len(texts) - 1) + [True]
        store.verify(store.manifest(uri).reference(uri))
        if finished:
            assert moment > 10
            return
    raise AssertionError("it never finished")


def _die_at(moment: int, exchanges: bool) -> None:
    """Ends this process right before its n-th change of the file system, as a kill would."""
    import airflow_hops.core.store.files as module

    changes = iter(range(1, 1000))
    exchange = module.exchange

    def count() -> None:
        if next(changes) == moment:
            os._exit(9)

    def counted_exchange(first: Path, second: Path) -> bool:
        if not exchanges:
            return False
        count()
        done = exchange(first, second)
        count()
        return done

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if writes or event in ("os.rename", "os.link", "os.remove", "os.mkdir", "os.rmdir", "shutil.rmtree"):
            count()

    module.exchange = counted_exchange
    sys.addaudithook(audit)


def test_binary_edit_is_preserved_and_can_be_replaced(store: ArtifactStore) -> None:
    freeze(store, text_of("a"))
    uri = address(store)
    file = Path(uri.removeprefix("file://")) / SCHEMA_FILE
    file.write_bytes(b"# caf\xe9\n" + text_of("a").encode())
    assert is_edited(store, uri)
    with pytest.raises(BadInput, match=r"schema\.pbtxt:1: not a schema in protobuf text: expected UTF-8"):
        schema_text(store, uri)
    publish_schema(store, uri, text_of("b"), approved_by="ann")
    edited = schema_history(store, uri)[1]
    retained = Path(kept_version(uri, edited.fingerprint).removeprefix("file://")) / SCHEMA_FILE
    assert retained.read_bytes().startswith(b"# caf\xe9\n")
    with pytest.raises(BadInput, match="expected UTF-8"):
        schema_text(store, uri, 2)
