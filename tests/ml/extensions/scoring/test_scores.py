"""Scores of tables by the versions of a deployed model, without a server: versions by key, captured rows, windows."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tensorflow as tf
from campaigns import campaign
from echo_models import write_function
from server_process import Start

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.models.model_record import ModelRecord, ServedVersion, write_record
from airflow_hops.core.store import ArtifactStore
from airflow_hops.core.times import now
from airflow_hops.extensions.scoring.ml import stage
from airflow_hops.extensions.scoring.ml.batches import canary_side
from airflow_hops.extensions.scoring.ml.captured import ScoredWindow, scored_rows
from airflow_hops.ml.captured.requests import CapturedRequests
from airflow_hops.ml.model_server.server import ModelServer
from airflow_hops.ml.prepare import stage as prepare
from airflow_hops.ml.skew import stage as skew
from airflow_hops.ml.spark.pools import Pool, step_pool
from airflow_hops.serving.capture.files import LocalCaptureFiles
from airflow_hops.testing.model_servers import ModelServerContract
from tests.ml.conftest import Bucket
from tests.ml.world import World

ROWS = 600
SINCE = "2020-01-01T00:00:00+00:00"


class TestContract(ModelServerContract):
    kind = "batch"

    def write(self, folder: Path) -> None:
        write_function(folder, lambda x: {"probability": x}, x=tf.float32)

    @pytest.fixture
    def services(self, tmp_path: Path) -> Mapping[str, str]:
        return {"serving_base_path": str(tmp_path / "models")}


class Scoring:
    """A deployed model whose versions answer with their input, plus a number of each, and the tables that it scores."""

    def __init__(self, world: World, own_process: Callable[..., Any]) -> None:
        self.world, self.folder, self.own_process = world, world.folder / "captured", own_process
        self.services = {
            "serving_kind": "batch",
            "serving_base_path": str(world.folder / "models"),
            "serving_capture_path": str(self.folder),
        }

    def model(self, plus: float, limit: float = np.inf, output: str = "probability", **properties: Any) -> Artifact:
        """Writes a model; it fails on inputs above the limit."""

        def serve(x: Any, carrier: Any) -> Any:
            assertion = tf.debugging.assert_less_equal(x, tf.constant(limit, tf.float32), "too far")
            with tf.control_dependencies([assertion]):
                return {output: x + plus + 0 * tf.cast(tf.strings.length(carrier), tf.float32)}

        return self.world.served_function(serve, {"x": tf.float32, "carrier": tf.string}, **properties)

    def serve(self, champion: Artifact, canary: Artifact | None = None, percent: int = 20, since: str = SINCE) -> None:
        """Records version 1 as the champion, and version 2 as the canary."""
        first = ServedVersion.of(champion, 1, "/models/1", 100 - percent if canary else 100)
        second = canary and replace(ServedVersion.of(canary, 2, "/models/2", percent), since=since)
        write_record(self.world.store, "m", ModelRecord(champion=first, challenger=second))

    def examples(self, day: int = 1, rows: int = ROWS, **columns: Any) -> Artifact:
        """Writes the rows of a day's window, in two files."""
        table = pd.DataFrame(
            {
                "id": [f"k{row}" for row in range(rows)],
                "x": np.arange(rows, dtype=np.float32) / rows + day,
                "carrier": ["UA", "AA", "ü"] * (rows // 3),
                **columns,
            }
        )
        window = [f"2026-11-{day:02}T00:00:00+00:00", f"2026-11-{day + 1:02}T00:00:00+00:00"]
        parts = [table[: rows // 3], table[rows // 3 :]]
        return self.world.examples({"day": parts}, **{"key": "id", "window": window})

    def score(self, examples: Artifact, **params: Any) -> Any:
        """Runs the step in a process of its own, as it forks before it uses TensorFlow."""
        return self.own_process(run_step, self.world.folder, self.services, examples, params)

    def scores(self, artifact: Artifact) -> pd.DataFrame:
        return self.world.rows(artifact, "day").to_pandas().set_index("id")

    def captured(self) -> pd.DataFrame:
        files = sorted(self.folder.glob("m/*.parquet"))
        return pd.concat([pq.read_table(file).to_pandas() for file in files], ignore_index=True)


def run_step(
    folder: Path, services: Mapping[str, str], examples: Artifact, params: Mapping[str, Any], store: Any = None
) -> Artifact:
    """Scores examples, by default in the world's own store."""
    values = {"model_name": "m", **params}
    ids = {"kind": "predictions", "task_id": "score", "services": services}
    artifact: Artifact = World(folder, store).run(stage.run, examples=examples, **ids, **values)
    return artifact


@pytest.fixture
def scoring(world: World, own_process: Callable[..., Any]) -> Scoring:
    return Scoring(world, own_process)


def test_champion_scores_every_row_and_is_captured(scoring: Scoring) -> None:
    scoring.serve(scoring.model(0))
    artifact = scoring.score(scoring.examples())
    scores = scoring.scores(artifact)
    assert list(scores.columns) == ["probability", "version"] and len(scores) == ROWS
    assert set(scores["version"]) == {1} and artifact.properties["version"] == 1
    captured = scoring.captured()
    assert captured["request_id"].tolist() == [f"{key}@2026-11-02T00:00:00+00:00" for key in scores.index]
    assert captured["output.probability"].tolist() == captured["input.x"].tolist() == scores["probability"].tolist()
    assert captured["input.carrier"].tolist() == ["UA", "AA", "ü"] * (ROWS // 3)


def run_on_executors(root: str, options: Mapping[str, Any], *place: Any) -> Artifact:
    """Scores in a remote store, to which the pool writes itself, as executors do on other hosts."""

    @contextlib.contextmanager
    def pool(*arguments: Any) -> Iterator[Pool]:
        with step_pool(*arguments) as made:
            yield replace(made, reads_store=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stage, "step_pool", pool)
        return run_step(*place, store=ArtifactStore(root, storage_options=options))


def test_rows_of_all_splits_are_captured_in_a_remote_store(
    tmp_path: Path, bucket: Bucket, own_process: Callable[..., Any]
) -> None:
    options = {**bucket.options, "key": "testing", "secret": "testing"}  # the process may be older than the variables
    store = ArtifactStore(f"{bucket.url}/hops", storage_options=options)
    scoring = Scoring(World(tmp_path, store), own_process)
    services = {**scoring.services, "serving_capture_path": f"{store.root}/_serving/captured"}
    scoring.serve(scoring.model(0), scoring.model(100), 30)
    table = scoring.world.rows(scoring.examples(), "day")
    splits = {"train": [table[:200], table[200:400]], "eval": table[400:]}
    examples = scoring.world.examples(splits, key="id")
    scores = own_process(run_on_executors, store.root, options, tmp_path, services, examples, {})
    files = bucket.fs.find(f"{store.root}/_serving/captured/m")
    captured = pa.concat_tables([pq.read_table(io.BytesIO(bucket.fs.cat_file(file))) for file in files])
    assert sorted(each.partition("@")[0] for each in captured["request_id"].to_pylist()) == sorted(
        table["id"].to_pylist()
    )
    versions = [scoring.world.rows(scores, split)["version"].to_pylist() for split in splits]
    assert Counter(captured["version"].to_pylist()) == Counter(itertools.chain(*versions))
    assert not bucket.fs.find(f"{store.root}/_serving/scoring"), "nothing is left for the executors"


def test_canary_gets_its_share_of_the_keys_and_keeps_them(scoring: Scoring) -> None:
    """A key is on the same side as an integer, as text and as bytes."""
    champion, canary = scoring.model(0), scoring.model(100)
    sides: dict[int, set[str]] = {}
    forms = {1: [*range(ROWS)], 2: [f"{row}" for row in range(ROWS)], 3: [b"%d" % row for row in range(ROWS)]}
    for day, percent in ((1, 20), (2, 20), (3, 50)):
        scoring.serve(champion, canary, percent)
        table = scoring.world.rows(scoring.examples(day), "day").set_column(0, "id", pa.array(forms[day]))
        window = [f"2026-11-{day:02}", f"2026-11-{day + 1:02}"]
        examples = scoring.world.examples({"day": [table[:200], table[200:]]}, key="id", window=window)
        scores = scoring.scores(scoring.score(examples))
        assert scores.index.tolist() == pa.array(forms[day]).to_pylist(), "rows in their order"
        assert ((scores["probability"] > 100) == (scores["version"] == 2)).all()
        sides[day] = {*map(int, scores.index[scores["version"] == 2])}
    assert sides[1] == sides[2] < sides[3]
    spread = 4 * np.sqrt(ROWS * 0.2 * 0.8)
    assert abs(len(sides[1]) - 0.2 * ROWS) < spread
    captured = scoring.captured()
    ids = Counter(f"{row}@2026-11-{day:02}" for row in range(ROWS) for day in (2, 3, 4))
    assert Counter(captured["request_id"]) == ids
    assert ((captured["output.probability"] > 100) == (captured["version"] == 2)).all()


KEYS: dict[str, Callable[[int], Any]] = {
    "integers": lambda n: np.arange(n) + 10**9,
    "steps": lambda n: np.arange(n) * 1024,
    "prefix": lambda n: [f"customer-of-the-north-{number:012}" for number in range(n)],
    "uuids": lambda n: [str(uuid.UUID(int=number * 2**80 + number)) for number in range(n)],
    "bytes": lambda n: [b"%d" % number for number in range(n)],
    "addresses": lambda n: [f"{number}@example.org" for number in range(n)],
}


@campaign("canaries", 2, 20)
@pytest.mark.parametrize("form", KEYS)
def test_sides_of_a_canary_are_random(form: str, canaries: int) -> None:
    """Whatever keys look like: shares lie within binomial bounds, and nothing of a key tells its side."""
    count, limit = 20_000, 5.5
    keys = pa.array(KEYS[form](count)).cast(pa.string())
    place = np.arange(count)
    facts = {f"bit {bit}": place >> bit & 1 for bit in range(12)} | {"half": place < count // 2, "decade": place % 10}
    drawn = np.random.default_rng(79).choice([5, 20, 30, 50, 77], canaries).tolist()
    former = np.ones(count, bool)
    former_share = 1.0
    for number, percent in enumerate(drawn):
        fingerprint, share = hashlib.sha256(b"%d" % number).hexdigest(), percent / 100
        sides = [canary_side(keys, fingerprint, each) for each in (0, percent // 2, percent, 90, 100)]
        assert all((less <= more).all() for less, more in itertools.pairwise(sides)), "a share only adds keys"
        assert (sides[0].any(), sides[-1].all()) == (False, True)
        side = sides[2]
        parts = [canary_side(keys[start : start + 700], fingerprint, percent) for start in range(0, count, 700)]
        assert (np.concatenate(parts) == side).all(), "a side does not depend on other rows"
        both = share * former_share
        for mean, expected in ((side.mean(), share), ((side & former).mean(), both)):
            assert abs(mean - expected) <= limit * np.sqrt(expected * (1 - expected) / count)
        for name, values in facts.items():
            spread = values.std() * np.sqrt(1 / side.sum() + 1 / (~side).sum())
            assert abs(values[side].mean() - values[~side].mean()) < limit * spread, name
        former, former_share = side, share


def test_shadow_scores_all_rows_and_hands_none_on(scoring: Scoring) -> None:
    scoring.serve(scoring.model(0), scoring.model(100, output="score"), 10)
    scores = scoring.scores(scoring.score(scoring.examples(), shadow=True))
    assert set(scores["version"]) == {1} and scores["probability"].max() < 100
    captured = scoring.captured()
    keys = captured["request_id"].str.partition("@")[0]
    assert keys.groupby(captured["version"]).apply(set).tolist() == [set(scores.index)] * 2
    requests = CapturedRequests(str(scoring.folder), "m")
    assert len(requests.names()) == len(requests.names(1)) == len(requests.names(2)) > 0, "monitors see a row once"
    assert captured.loc[captured["version"] == 2, "output.score"].min() > 100


def test_champion_answers_where_the_canary_fails(scoring: Scoring) -> None:
    scoring.serve(scoring.model(0), scoring.model(100, limit=-1.0), 30)
    scored = scoring.score(scoring.examples())
    scores = scoring.scores(scored)
    assert set(scores["version"]) == {1} and len(scores) == ROWS
    counts = scored_rows(scoring.world.store, "m", SINCE)
    assert scored.metrics["failed_rows_version_2"] == counts[2]["failed"]
    assert counts[1] == {"rows": ROWS, "failed": 0}
    assert counts[2]["rows"] == 0 and abs(counts[2]["failed"] - 0.3 * ROWS) < 50
    server = ModelServer.of(scoring.services, scoring.world.store)
    server.serve("m", [1, 2])
    assert server.counts("m", SINCE)[2]["errors"] == counts[2]["failed"]


def test_unchanged_rows_are_published_again_for_a_new_canary(scoring: Scoring) -> None:
    """Its rollout reads rows by the time of their file, and counts a window once in each step."""
    champion, canary = scoring.model(0), scoring.model(100)
    scoring.serve(champion)
    scoring.score(scoring.examples())
    former = scoring.captured()["captured_at"].max()
    since = now()
    names = []
    for begin in (since, "2999-01-01T00:00:00.000+00:00", since):  # by the clock of another machine, too
        scoring.serve(champion, canary, 30, begin)
        for _ in range(2):
            scoring.score(scoring.examples(), shadow=True)
            names.append(sorted(path.name for path in scoring.folder.glob("m/*.parquet")))
    assert names[::2] == names[1::2] and not {*names[0]} & {*names[2]} and not {*names[2]} & {*names[4]}
    captured = scoring.captured()
    assert len(captured) == 2 * ROWS and captured["captured_at"].min() > former
    assert scored_rows(scoring.world.store, "m", since) == {v: {"rows": ROWS, "failed": 0} for v in (1, 2)}


def test_server_that_runs_gets_no_scored_rows(scoring: Scoring) -> None:
    scoring.serve(scoring.model(0), scoring.model(100), 50)
    scoring.services["serving_kind"] = "bundled"
    scores = scoring.scores(scoring.score(scoring.examples()))
    assert "version" not in scores and scores["probability"].max() < 100
    assert not scoring.folder.exists()
    with pytest.raises(BadInput, match="only versions that score tables have a shadow"):
        scoring.score(scoring.examples(), shadow=True)


def test_rerun_of_a_window_replaces_its_rows_alone(scoring: Scoring) -> None:
    scoring.serve(scoring.model(0))
    days = {day: scoring.examples(day) for day in (1, 2)}
    for examples in days.values():
        scoring.score(examples)
    earlier = {path.name: path.read_bytes() for path in scoring.folder.glob("m/*.parquet")}
    scoring.score(days[1])
    assert {path.name: path.read_bytes() for path in scoring.folder.glob("m/*.parquet")} == earlier, "nothing changed"
    corrected = scoring.examples(1, x=np.full(ROWS, 0.5, np.float32))
    scoring.score(corrected)
    captured = scoring.captured()
    assert len(captured) == 2 * ROWS and (captured["input.x"] == 0.5).sum() == ROWS
    scoring.serve(scoring.model(0), scoring.model(100), 50)
    scoring.score(corrected)
    assert len(scoring.captured()) == 2 * ROWS, "rows of another version replace them, too"
    counts = scored_rows(scoring.world.store, "m", SINCE)
    assert counts[1]["rows"] + counts[2]["rows"] == ROWS, "only while there is a canary"
    scoring.serve(scoring.model(0))
    scoring.score(days[2])
    assert scored_rows(scoring.world.store, "m", SINCE) == {}


def test_commit_that_was_killed_anywhere_is_repaired_by_the_next_try(
    store: ArtifactStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process ends after each of the calls that change files, in every state that an earlier kill has left."""
    folder, calls = tmp_path / "captured", 0
    canary = ServedVersion.of(Artifact("file:///m", "model", "f"), 2, "/models/2", 50)
    write_record(store, "m", ModelRecord(challenger=replace(canary, since=SINCE)))
    window = ScoredWindow.of(store, "m", Producer("d", "run", "score"), ("2026-11-01", "2026-11-02"))

    def commit(kill: int, values: Mapping[int, Sequence[float]]) -> bool:
        """Commits a file for each value of each version; returns whether it ended before the ``kill``-th change."""
        nonlocal calls
        calls, files = 0, dict[int, dict[Path, str]]()
        for version, rows in values.items():
            for number, value in enumerate(rows):
                path = tmp_path / f"v{version}-{number}.parquet"
                pq.write_table(pa.table({"input.x": [value], "version": [version]}), path)
                files.setdefault(version, {})[path] = str(value)
        counts = {version: {"rows": len(rows), "failed": 0} for version, rows in values.items()}

        def ending(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **named: Any) -> Any:
                nonlocal calls
                result = function(*arguments, **named)
                calls += 1
                if calls == kill:
                    raise KeyboardInterrupt
                return result

            return call

        with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            for owner, name in (
                (LocalCaptureFiles, "publish"),
                (LocalCaptureFiles, "remove"),
                (ArtifactStore, "write_text"),
            ):
                patch.setattr(owner, name, ending(getattr(owner, name)))
            window.commit({"serving_capture_path": str(folder)}, files, counts, datetime.now(UTC))
            return True
        return False

    other = ScoredWindow.of(store, "m", Producer("d", "run", "score"), ("2026-11-02", "2026-11-03"))
    other_file = tmp_path / "other.parquet"
    pq.write_table(pa.table({"input.x": [-1.0], "version": [1]}), other_file)
    rows = {1: {"rows": 1, "failed": 0}}
    other.commit({"serving_capture_path": str(folder)}, {1: {other_file: "x"}}, rows, datetime.now(UTC))
    states: list[dict[int, list[float]]] = [{1: [0.0, 0.0, 1.0]}, {1: [0.0, 2.0], 2: [3.0]}, {2: [0.0]}, {1: [4.0]}]
    for kill in range(1, 12):
        for values in states:
            ended = commit(kill, values) or commit(kill // 2, values)
            assert ended or commit(0, values)
            tables = [
                pq.read_table(path, columns=["version", "input.x"]) for path in sorted(folder.glob("m/*.parquet"))
            ]
            rows = [tuple(row.values()) for table in tables for row in table.to_pylist()]
            wanted = [(version, value) for version, each in values.items() for value in each]
            assert sorted(rows) == sorted([*wanted, (1, -1.0)])
            counts = {version: each["rows"] for version, each in scored_rows(store, "m", SINCE).items()}
            assert counts == Counter(version for version, _ in [*wanted, (1, -1.0)])


@pytest.mark.parametrize(
    ("canary", "examples", "params", "message"),
    [
        (None, {"id": None}, {"columns": ["version"]}, "columns name 'version', which is an output of the scoring"),
        (None, {"drop": "carrier"}, {}, "no column 'carrier', which the model's signature has as string"),
        ({}, {"key": None}, {}, "version 2 is a canary, which scores 20% of the keys, and the examples have no key"),
        ({}, {"id": [None, *range(1, ROWS)]}, {}, "column 'id', the key, is null in 1 of"),
        (
            {},
            {"id": [b"\xff", *[b"k"] * (ROWS - 1)]},
            {},
            "column 'id', the key, is binary, which does not become text",
        ),
        ({"output": "other"}, {}, {}, "version 2, the canary, has the outputs .*other"),
        ({"classes": ["yes", "no"]}, {}, {}, r"classes of the canary, version 2, is \('yes', 'no'\), of the champ"),
    ],
)
def test_tables_that_cannot_be_scored_are_refused(
    scoring: Scoring, canary: Any, examples: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    scoring.serve(scoring.model(0), None if canary is None else scoring.model(1, **canary))
    ids = examples.get("id")
    columns = {"id": ids if ids and isinstance(ids[0], bytes) else pd.array(ids, "string")} if ids else {}
    properties = {"key": None} if "key" in examples else {}
    artifact = scoring.examples(**columns)
    if properties or "drop" in examples:
        rows = scoring.world.rows(artifact, "day").drop([examples["drop"]] if "drop" in examples else [])
        artifact = scoring.world.examples({"day": rows}, **{"key": "id", **properties})
    with pytest.raises(BadInput, match=message):
        scoring.score(artifact, **params)
    assert not scoring.folder.exists()


def test_model_that_does_not_serve_is_named(scoring: Scoring) -> None:
    with pytest.raises(BadInput, match="'m'"):
        scoring.score(scoring.examples())


@pytest.mark.server
def test_rows_are_captured_as_by_the_server(scoring: Scoring, start_server: Start, tmp_path: Path) -> None:
    """The model server is asked the same rows, and its files have the same columns, types and values."""
    model = scoring.model(0.25)
    scoring.serve(model)
    scoring.score(scoring.examples())
    saved = scoring.world.store.local(model) / "saved_model"
    config = tmp_path / "models.config"
    (tmp_path / "served" / "m").mkdir(parents=True)
    (tmp_path / "served" / "m" / "1").symlink_to(saved)
    config.write_text(f'model_config_list {{ config {{ name: "m" base_path: "{tmp_path}/served/m" }} }}\n')
    server = start_server(model_config_file=config, capture_base_path=tmp_path / "asked", capture_roll_seconds=0.2)
    own = scoring.captured()
    rows = [
        {"x": float(x), "carrier": carrier} for x, carrier in zip(own["input.x"], own["input.carrier"], strict=True)
    ]
    status, answer = server.call("/v1/models/m:predict", {"instances": rows})
    assert status == 200, json.dumps(answer)[:300]
    server.flush()
    (asked,) = (tmp_path / "asked" / "m").glob("*.parquet")
    expected, ours = (
        pq.read_table(asked),
        pa.concat_tables([pq.read_table(file) for file in sorted(scoring.folder.glob("m/*.parquet"))]),
    )
    assert {field.name: field.type for field in ours.schema} == {field.name: field.type for field in expected.schema}
    for name in expected.column_names:
        if name.startswith(("input.", "output.")) or name in ("model", "version", "signature"):
            assert ours[name].to_pylist() == expected[name].to_pylist(), name


def test_loop_without_a_server_finds_the_drift_of_rows_without_labels(scoring: Scoring) -> None:
    """Rows are ingested, prepared without a label and scored; the monitor compares what was scored."""
    world, random = scoring.world, np.random.default_rng(5)

    def rows(mean: float, count: int) -> dict[str, Any]:
        names = [f"c{number}" for number in range(count)]
        return {"id": names, "x": random.normal(mean, 1, count), "carrier": random.choice(["AA", "UA"], count)}

    known = {**rows(0, 4000), "label": random.integers(0, 2, 4000)}
    described = world.described(world.examples({"train": known}, key="id"))
    uris = {role: described[role].uri for role in ("statistics", "schema")}
    scoring.serve(scoring.model(0, features=["x", "carrier"], inputs=["x", "carrier"], **uris))

    def watch(mean: float, day: int) -> str:
        snapshot = world.snapshot(
            {"day": pa.table(rows(mean, 3000))}, window=[f"2026-11-0{day}", f"2026-11-0{day + 1}"]
        )
        examples = world.run(
            prepare, prepare="unlabelled_rows:prepare", label="", key="id", engine="duckdb", tables=snapshot
        )
        assert examples.properties["splits"] == ["rows"]
        scoring.score(examples)
        report = world.run(skew, services=scoring.services, model_name="m")
        return str(report.properties["verdict"])

    assert [watch(0, 1), watch(1.0, 2)] == ["stable", "drift"]
