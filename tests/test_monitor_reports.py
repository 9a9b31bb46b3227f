"""The index of what monitors found about a model's versions."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.monitor_reports import KEPT, listed_reports, monitoring_reports, note_report, read_report
from airflow_hops.core.times import now


def test_reports_are_listed_by_version_and_the_newest_data_come_first(store: Any) -> None:
    def note(dag_id: str, run_id: str, end: str, fingerprint: str = "f") -> None:
        uri = store.uri(dag_id, run_id, "performance", "performance")
        artifact = Artifact(uri, "performance", fingerprint)
        note_report(store, "m", artifact, [2, 3], end, Producer(dag_id, run_id, "performance"))

    def listed(version: int) -> list[tuple[str, str]]:
        return listed_reports(store, "m", version, "performance")

    for run_id, month, fingerprint in (("jan", "01", "old"), ("may", "05", "may"), ("jan", "01", "new")):
        moment = now()
        while now() == moment:  # reports are ordered by milliseconds
            pass
        note("monitoring", run_id, f"2013-{month}-31T00:00:00Z", fingerprint)
    read = [read_report(store, "m", 2, "performance", name).fingerprint for _, name in listed(2)]
    assert read == ["may", "new"], "January's was made again"
    made = [report.fingerprint for report in monitoring_reports(store, "m", "performance")]
    assert made == ["new", "new", "may", "may"], "of all versions, those made last come first"

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: note("other", f"r{number}", "2013-06-01"), range(16)))
    assert [dag_id for dag_id, _ in listed(3)].count("other") == 16, "none is lost among runs at the same time"

    folder = store.internal("_state", "monitored", "m", "2", "performance")
    for number in range(KEPT):
        store.write_text(f"{folder}/other/20130602T000000.000000Z@x@{number:04}.json", "{")
    note("other", "r0", "2013-06-01")
    dags = [dag_id for dag_id, _ in listed(2)]
    assert (dags.count("other"), dags.count("monitoring")) == (KEPT, 2), "what others do takes nothing away"


@pytest.mark.parametrize("name", ["own/20130601T000000.000000Z@x@0.json", "20130601T000000.000000Z@x@own@0.json"])
def test_report_of_another_dag_is_not_shown_as_ones_own(store: Any, name: str) -> None:
    """A file that names an artifact of another DAG would show it to those who may read only this one."""
    report = {"uri": store.uri("secret", "r", "skew", "skew"), "kind": "skew", "fingerprint": "f", "at": "2013"}
    store.write_text(f"{store.internal('_state', 'monitored', 'm', '2', 'skew')}/{name}", json.dumps(report))
    assert listed_reports(store, "m", 2, "skew") == [("own", name)]
    with pytest.raises(BadInput, match="names an artifact of another DAG; remove it"):
        read_report(store, "m", 2, "skew", name)
