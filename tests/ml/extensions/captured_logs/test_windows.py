"""Each captured row arrives once, whatever was delivered twice, late, or cut in half."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.captured_logs import CapturedSource
from airflow_hops.extensions.captured_logs.core.records import LogRecords
from airflow_hops.extensions.captured_logs.ml import plan
from airflow_hops.testing.sources import ReaderContract, SourceContract
from tests.ml.extensions.captured_logs import logs

HOUR_S = 3600
BEGIN_S = 1_790_002_800
LOOKBACK = 3


def window(number: int) -> tuple[str, str]:
    """Hour of a number."""
    start, end = (datetime.fromtimestamp(BEGIN_S + each * HOUR_S, UTC).isoformat() for each in (number, number + 1))
    return start, end


def hourly(log: Path, **fields: Any) -> CapturedSource:
    columns = {"request_id": "id", "captured_at": "t", "time_unit": "s", "version": "v"}
    fields = {"inputs": {"a": "a"}, "outputs": {"p": "p"}, "lookback": LOOKBACK, **columns, **fields}
    return CapturedSource(str(log), model="m", **fields)


def entry(number: int, at_s: float = 1.0, **fields: Any) -> dict[str, Any]:
    return {"id": f"r{number}", "t": BEGIN_S + at_s, "v": 1, "a": number, "p": 0.5, **fields}


def test_line_cut_in_half_is_taken_once_it_is_whole(make_context: Any, tmp_path: Path) -> None:
    """Also by a retry; test_taken_once.py holds deliveries that are late, early or repeated."""
    log, ingest = tmp_path / "x.jsonl", logs.Ingests(make_context, tmp_path)
    line = json.dumps(entry(2, HOUR_S)) + "\n"
    logs.append(log, [entry(1)])
    for hour, half in enumerate((line[:20], line[20:])):
        with log.open("a") as stream:
            stream.write(half)
        for run in ("run", "retry"):
            table, rows = ingest(hourly(log), *window(hour), run_id=f"{run}-{hour}")
            assert table["request_id"].to_pylist() == [f"r{hour + 1}"] and not rows.rejected


def test_counts_what_it_leaves_out(tmp_path: Path, make_context: Any) -> None:
    ingest = logs.Ingests(make_context, tmp_path)
    log = tmp_path / "log"
    source = hourly(log, versions={"1": 1}, endpoint="ours", endpoint_field="e")
    log.mkdir()
    lines = [entry(0), entry(0), entry(1, v=2), entry(2, e="theirs"), entry(3, -5), entry(4, 2 * HOUR_S), entry(5)]
    logs.append(log / "x.jsonl", [{"e": "ours", **line} for line in lines])
    with (log / "x.jsonl").open("a") as stream:
        stream.write("damaged\n")
        stream.write(json.dumps({"e": "ours", **entry(6)})[:-9])
    table, rows = ingest(source, *window(0))
    assert table["request_id"].to_pylist() == ["r0", "r5"]
    assert rows.rejected == {
        "delivered twice": 1, "of version '2', which was not deployed from here": 1, "of endpoint 'theirs'": 1,
        "outside window": 1, "no JSON object": 1,
    }  # fmt: skip
    with pytest.raises(BadInput, match=r"no captured rows for the window .*\(1 no JSON object\)"):
        ingest(source, *window(1))  # the line was not completed
    table, rows = ingest(source, *window(2))
    assert table["request_id"].to_pylist() == ["r4"] and rows.rejected == {"no JSON object": 1}


def test_window_of_answers_without_predictions_has_no_rows(tmp_path: Path, make_context: Any) -> None:
    """As a window without requests: see test_empty_windows.py."""
    log, ingest = tmp_path / "log", logs.Ingests(make_context, tmp_path)
    source = hourly(log, request="q", response="s", inputs=("a",), outputs=("p",), versions={"1": 1})
    logs.append(log / "x.jsonl", [entry(0, q=[1], s=[2])])
    assert ingest(source, *window(0))[0].num_rows == 1
    logs.append(log / "x.jsonl", [entry(1, HOUR_S, q=[1, 2], s='{"error": "x"}')])
    table, rows = ingest(source, *window(1))
    assert table.num_rows == rows.rows_out == 0 and table.column_names[:2] == ["request_id", "row"]
    assert rows.rejected == {"answered without predictions": 1}


def test_entries_of_an_impossible_time_are_refused_once(tmp_path: Path, make_context: Any) -> None:
    ingest, log = logs.Ingests(make_context, tmp_path), tmp_path / "log"
    for hour in range(LOOKBACK + 3):
        logs.append(log / f"{hour}.jsonl", [entry(hour, hour * HOUR_S)])
        if hour == 0:
            logs.append(log / "0.jsonl", [entry(100, 100 * HOUR_S)])
        if hour == LOOKBACK + 2:
            logs.append(log / "x.jsonl", [entry(101, 7)])
        table, rows = ingest(hourly(log), *window(hour))
        assert table["request_id"].to_pylist() == [f"r{hour}"]
        expected = {0: {"captured in the future": 1}, LOOKBACK + 2: {"captured more than 3 windows before": 1}}
        assert rows.rejected == expected.get(hour, {})


def test_versions_of_the_record_are_judged(tmp_path: Path, make_context: Any, store: Any) -> None:
    log = tmp_path / "log"
    logs.append(log / "x.jsonl", [entry(0), entry(1, v=2)])
    history = [{"at": "2026-01-01T00:00:00+00:00", "event": "deployed", "version": 2}]
    store.write_text(store.internal("_models", "m.json"), json.dumps({"champion": None, "history": history}))
    table, rows = logs.Ingests(make_context, tmp_path)(hourly(log))
    assert table["version"].to_pylist() == [2]
    assert rows.rejected == {"of version '1', which was not deployed from here": 1}


@pytest.mark.parametrize("count", [1, 3, 4, 30])
def test_loss_by_rotation_fails_one_run(count: int, make_context: Any, tmp_path: Path) -> None:
    log, ingest = tmp_path / "log.jsonl", logs.Ingests(make_context, tmp_path)
    logs.append(log, [entry(number) for number in range(3)])
    ingest(hourly(log), *window(0))
    log.unlink()
    logs.append(log, [entry(100 + number, at_s=HOUR_S) for number in range(count)])
    with pytest.raises(
        BadInput, match=r"log\.jsonl: the file was replaced; entries after its first \d+ bytes may be lost"
    ):
        ingest(hourly(log), *window(1))
    table, rows = ingest(hourly(log), *window(1))
    assert table["request_id"].to_pylist() == [f"r{100 + number}" for number in range(count)] and not rows.rejected


def test_file_that_is_removed_before_it_is_read_fails_one_run(make_context: Any, tmp_path: Path) -> None:
    folder, ingest = tmp_path / "log", logs.Ingests(make_context, tmp_path)
    for name in ("a", "b"):
        logs.append(folder / f"{name}.jsonl", [entry(1, HOUR_S), entry(2, 9)])
    with pytest.raises(logs.Killed):
        ingest(hourly(folder), *window(0), ends_before="read")
    (folder / "a.jsonl").unlink()
    with pytest.raises(BadInput, match=r"a\.jsonl: the file was removed or replaced before a window had read all"):
        ingest(hourly(folder), *window(1))
    assert sorted(ingest(hourly(folder), *window(1))[0]["request_id"].to_pylist()) == ["r1", "r2"]
    (folder / "b.jsonl").unlink()  # which was read
    assert ingest(hourly(folder), *window(2))[0].num_rows == 0


def test_rotation_that_keeps_files_counts_nothing(make_context: Any, tmp_path: Path) -> None:
    folder, ingest = tmp_path / "log", logs.Ingests(make_context, tmp_path)
    for hour in range(3):
        logs.append(folder / "app.jsonl", [entry(hour, hour * HOUR_S), entry(10 + hour, (hour + 1) * HOUR_S)])
        table, rows = ingest(hourly(f"{folder}/app.jsonl*"), *window(hour))
        assert f"r{hour}" in table["request_id"].to_pylist() and rows.rejected == {}
        logs.append(folder / "app.jsonl", [entry(20 + hour, hour * HOUR_S)])
        for number in (2, 1):  # as logrotate does by default
            if (folder / f"app.jsonl.{number}").exists():
                (folder / f"app.jsonl.{number}").rename(folder / f"app.jsonl.{number + 1}")
        (folder / "app.jsonl").rename(folder / "app.jsonl.1")
    table, rows = ingest(hourly(f"{folder}/app.jsonl*"), *window(3))
    assert sorted(table["request_id"].to_pylist()) == ["r12", "r22"] and rows.rejected == {}


def test_garbage_of_a_failed_window_stops_no_other(make_context: Any, tmp_path: Path) -> None:
    log, ingest = tmp_path / "log.jsonl", logs.Ingests(make_context, tmp_path)
    logs.append(log, [entry(1), *({"x": number} for number in range(20))])
    for _ in range(2):  # also if it is cleared
        with pytest.raises(BadInput, match=r"20 rows in the window .* cannot be read, beside 1 others"):
            ingest(hourly(log), *window(0), run_id="run")
    logs.append(log, [entry(2, HOUR_S), {"x": 1}])
    table, rows = ingest(hourly(log), *window(1))
    assert table["request_id"].to_pylist() == ["r1", "r2"] and rows.rejected == {"without 'id'": 21}


def test_log_begins_again_without_its_state(make_context: Any, store: Any, tmp_path: Path) -> None:
    log, ingest = tmp_path / "log.jsonl", logs.Ingests(make_context, tmp_path)
    logs.append(log, [entry(1)])
    folder = store.internal("_state", "tasks", "tests", ingest.task(hourly(log)), "logs", "log")
    plans = []
    for _ in range(2):
        assert ingest(hourly(log), *window(0))[0]["request_id"].to_pylist() == ["r1"]
        plans += [name for name in store.names(folder) if name.endswith(".npy")]
        store.remove_folder(folder)
    assert plans[0] != plans[1]  # a step of an equal plan would be in the cache


@pytest.mark.parametrize("hours", [(0, 1), (1, 0), (1, 0, 1)])
def test_cleared_window_of_a_changed_source_takes_no_entry_of_others(
    hours: tuple[int, ...], make_context: Any, tmp_path: Path
) -> None:
    """Its log is read again, as r3 waits for the next window."""
    log, ingest = tmp_path / "log.jsonl", logs.Ingests(make_context, tmp_path)
    logs.append(log, [entry(1), entry(2, v=2), entry(3, HOUR_S)])
    assert ingest(hourly(log, versions={"1": 1}), *window(0))[0]["request_id"].to_pylist() == ["r1"]
    both = hourly(log, versions={"1": 1, "2": 2})
    taken = {hour: ingest(both, *window(hour))[0]["request_id"].to_pylist() for hour in hours}
    assert taken == ({0: ["r1", "r2"], 1: ["r3"]} if hours[0] == 0 else {0: ["r1"], 1: ["r2", "r3"]})


def test_commit_of_a_plan_that_another_try_replaced_is_retried(make_context: Any, store: Any, tmp_path: Path) -> None:
    log, ingest = tmp_path / "log.jsonl", logs.Ingests(make_context, tmp_path)
    logs.append(log, [entry(1), entry(2, HOUR_S)])
    with pytest.raises(logs.Killed):
        ingest(hourly(log), *window(0), ends_before="commit")
    folder = store.internal("_state", "tasks", "tests", ingest.task(hourly(log)), "logs", "log")
    records = LogRecords(store, folder)
    former = records.plan(records.state().windows[-1].number)
    for hour in (1, 0):
        ingest(hourly(log), *window(hour))
    with pytest.raises(HopsError, match="another run has taken entries of the log in the meantime"):
        records.commit(former)


class TestCapturedSource(SourceContract, ReaderContract):
    fields = {
        "uri": "captured:///log", "model": "m", "request_id": "id", "captured_at": "t", "versions": {"": 1},
        "inputs": {"a": "a"}, "outputs": {"p": "p"},
    }  # fmt: skip
    rows = 3

    @pytest.fixture
    def source(self, tmp_path: Path) -> CapturedSource:
        logs.append(tmp_path / "log" / "x.jsonl", [entry(number) for number in range(3)])
        return hourly(tmp_path / "log")

    @pytest.fixture
    def plan(self, source: CapturedSource, make_context: Any) -> Any:
        from airflow_hops.extensions.captured_logs.ml.plan import plan_logs

        return plan_logs(make_context(), sources={"rows": source.to_dict()}, window=[None, None])["rows"]


def test_file_that_did_not_change_is_not_opened_again(
    make_context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, ingest = tmp_path / "log", logs.Ingests(make_context, tmp_path)
    logs.append(folder / "old.jsonl", [entry(1)])
    ingest(hourly(folder), *window(0))
    logs.append(folder / "new.jsonl", [entry(2, at_s=HOUR_S)])
    opened: list[str] = []
    describe = plan._tail
    monkeypatch.setattr(plan, "_tail", lambda stream, end: opened.append(stream.name) or describe(stream, end))
    table, _ = ingest(hourly(folder), *window(1))
    assert table["request_id"].to_pylist() == ["r2"] and [Path(path).name for path in opened] == ["new.jsonl"]
