"""Each captured row arrives once, whatever was delivered twice, late, or cut in half."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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


@st.composite
def deliveries(draw: st.DrawFn) -> list[tuple[int, float, list[tuple[int, int, bool]]]]:
    """Requests: number, time in hours, and deliveries: hour, file, and whether the line waits for its second half."""
    result = []
    for number in range(draw(st.integers(1, 12))):
        hours = draw(st.floats(0, 4.99))
        # Early for a client whose clock is fast, late for a delayed delivery; within the lookback.
        first = int(hours) + draw(st.integers(-2, 2))
        copies = draw(st.lists(st.integers(0, 2), max_size=3))
        places = [first, *(first + each for each in copies)]
        limits = [min(max(each, 0), 5, int(hours) + LOOKBACK) for each in places]
        result.append((number, hours, [(each, draw(st.integers(0, 1)), draw(st.booleans())) for each in limits]))
    return result


@settings(
    max_examples=20, deadline=None, database=None, derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
@given(requests=deliveries())
def test_each_row_arrives_once(requests: Any, make_context: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("log")
    ingest = logs.Ingests(make_context, tmp_path_factory.mktemp("snapshots"))
    halves: dict[int, str] = {}
    taken: list[str] = []
    refused: list[str] = []
    for hour in range(6 + LOOKBACK):
        for file in (0, 1):
            with (folder / f"{file}.jsonl").open("a") as stream:
                stream.write(halves.pop(file, ""))
                for number, hours, places in requests:
                    for when, where, is_cut in places:
                        if (when, where) == (hour, file):
                            # A line is finished before another begins.
                            stream.write(halves.pop(file, ""))
                            line = json.dumps(entry(number, hours * HOUR_S)) + "\n"
                            stream.write(line[: len(line) // 2] if is_cut else line)
                            if is_cut:
                                halves[file] = line[len(line) // 2 :]
        try:
            table, _ = ingest(hourly(folder), *window(hour), run_id=f"run-{hour}")
        except BadInput as error:
            refused.append(str(error))
            continue
        assert ingest(hourly(folder), *window(hour), run_id="retry")[0] == table
        taken += table["request_id"].to_pylist()
    assert sorted(taken) == sorted(f"r{number}" for number, _, _ in requests)
    assert all("1 no JSON object" in error or "no file matches" in error for error in refused)


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


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"v": 2}, "of version '2', which was not deployed from here"),
        ({"s": '{"error": "x"}'}, "answered without predictions"),
        (None, None),
    ],
)
def test_window_without_usable_requests_has_no_rows(
    fields: dict[str, Any] | None, reason: str | None, tmp_path: Path, make_context: Any
) -> None:
    log, ingest = tmp_path / "log", logs.Ingests(make_context, tmp_path)
    bodies = {"request": "q", "response": "s", "inputs": ("a",), "outputs": ("p",), "versions": {"1": 1}}
    logs.append(log / "x.jsonl", [entry(0, q=[1], s=[2])])
    assert ingest(hourly(log, **bodies), *window(0))[0].num_rows == 1
    if fields is not None:
        logs.append(log / "x.jsonl", [entry(1, HOUR_S, **{"q": [1, 2], "s": [2, 3], **fields})])
    table, rows = ingest(hourly(log, **bodies), *window(1))
    assert table.num_rows == rows.rows_out == 0 and table.column_names[:2] == ["request_id", "row"]
    assert rows.rejected == ({} if reason is None else {reason: 2 if "version" in reason else 1})


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
