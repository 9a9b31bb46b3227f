"""Quotas of a connection: which steps they refuse before they begin, and with what words."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_hops.core.artifacts.artifact import Artifact, Producer
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import Output, StepResult, StepSpec
from airflow_hops.core.store import ArtifactStore
from airflow_hops.extensions.governance.core.quota_limits import Used
from airflow_hops.extensions.governance.core.quota_use import sum_usage
from airflow_hops.extensions.governance.runner.quota_gate import quotas_of
from airflow_hops.runner.connections import in_team
from airflow_hops.runner.runtime import RuntimeHook

DAG_ID = "flights_train"
ADVICE = "platform@example.org may raise {!r} in the field 'quotas' of connection 'limited'"
HOUR_S = 3600.0


@pytest.fixture
def limit(store: ArtifactStore, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the quotas of the connection ``limited``, whose store is ``store``."""

    def set_quotas(**quotas: Any) -> None:
        extra = {"store": store.root, "quotas": {"contact": "platform@example.org", **quotas}}
        monkeypatch.setenv("AIRFLOW_CONN_LIMITED", json.dumps({"conn_type": "hops", "extra": extra}))

    return set_quotas


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Artifact]:
    """Runs a step of a file that notes in ``began`` that it began."""
    (tmp_path / "began").touch()
    (tmp_path / "quota_steps.py").write_text(
        "import os\ndef run(context, began, **_):\n    open(began, 'a').write('.')\n"
        "    with context.output() as writer:\n        return writer.commit()\n"
    )
    runs = iter(range(100))

    def run_step(kind: str = "model", conn_id: str = "limited", **params: Any) -> Artifact:
        hook, producer = RuntimeHook(conn_id), Producer(DAG_ID, f"run-{next(runs)}", "step")
        output = Output(hook.store.address(producer, kind), kind)
        params = {"began": str(tmp_path / "began"), **params}
        spec = StepSpec(
            "step", "quota_steps:run", params, output=output, producer=producer, code_paths=(str(tmp_path),)
        )
        return Artifact.from_dict(hook.run(spec).value)

    return run_step


def use(
    store: ArtifactStore, dag_id: str = DAG_ID, core_h: float = 0.0, gpu_h: float = 0.0, mib: int = 0, days: float = 0
) -> None:
    """Writes an artifact whose step used so much, so many days ago."""
    producer = Producer(dag_id, f"used-{core_h}-{gpu_h}-{mib}-{days}", "train")
    with store.create(store.address(producer, "model"), "model", producer) as writer:
        (writer.path / "model.bin").write_bytes(bytes(mib << 20))
        writer.cost = lambda: {"core_s": core_h * HOUR_S, "gpu_s": gpu_h * HOUR_S}
        uri = writer.commit().uri
    manifest = store.read_json(f"{uri}/manifest.json")
    manifest["created_at"] = (datetime.now(UTC) - timedelta(days=days)).isoformat()
    store.write_text(f"{uri}/manifest.json", json.dumps(manifest))


@pytest.mark.parametrize(
    ("quotas", "words"),
    [
        ({"gpu_hours": 4}, "field 'quotas': a name is 'gpu_hours', expected one of team, dag, dags, contact"),
        ({"team": 4}, "field 'quotas': team is 4, expected an object with core_hours, gpu_hours, store_gib, max_ranks"),
        ({"dag": {"gpu_hour": 4}}, "field 'quotas': dag: a name is 'gpu_hour', .* did you mean 'gpu_hours'"),
        ({"team": {"store_gib": 0}}, "field 'quotas': team: store_gib is 0, expected a number above 0"),
        ({"dags": {"d": {"core_hours": "4"}}}, r"dags\['d'\]: core_hours is '4', expected a number above 0"),
        ({"dag": {"max_ranks": 2.5}}, "dag: max_ranks is 2.5, expected a whole number"),
        ({"dags": ["d"]}, r"dags is \['d'\], expected an object with limits by DAG"),
        ({"contact": 7}, "contact is 7, expected a text"),
    ],
)
def test_unusable_quotas_are_named(limit: Any, quotas: dict[str, Any], words: str) -> None:
    limit(**quotas)
    with pytest.raises(BadInput, match=f"connection 'limited': .*{words}"):
        quotas_of(RuntimeHook("limited"))


@pytest.mark.parametrize(
    ("quotas", "words", "name"),
    [
        ({"dag": {"gpu_hours": 40}}, "GPU hours of DAG 'flights_train': 41.2 of 40 in 30 days; ", "gpu_hours"),
        ({"team": {"gpu_hours": 50}}, "GPU hours of the team: 51.2 of 50 in 30 days; ", "gpu_hours"),
        ({"team": {"core_hours": 2.5}}, "Core hours of the team: 2.5 of 2.5 in 30 days; ", "core_hours"),
        (
            {"dag": {"store_gib": 0.001}},
            "GiB in the store of DAG 'flights_train': 0.00195 of 0.001; remove what is not needed with 'airflow hops "
            "gc', or ",
            "store_gib",
        ),
        ({"dag": {"max_ranks": 3}}, "step 'step' asks for 4 ranks, a step of DAG 'flights_train' may have 3; ask for "
         "fewer, or ", "max_ranks"),
        ({"dags": {"other": {"gpu_hours": 1}}, "dag": {"gpu_hours": 42, "max_ranks": 4}}, None, ""),
        ({"dags": {DAG_ID: {"gpu_hours": 42}}, "dag": {"gpu_hours": 1}, "team": {"gpu_hours": 52}}, None, ""),
    ],
)  # fmt: skip
def test_used_up_quotas_refuse_a_training(
    store: ArtifactStore, limit: Any, run: Any, tmp_path: Path, quotas: dict[str, Any], words: str | None, name: str
) -> None:
    use(store, core_h=1.5, gpu_h=41.2, mib=2)
    use(store, gpu_h=500, days=31)
    use(store, "other", core_h=1, gpu_h=10)
    limit(**quotas)
    if words is None:
        run(np=4)
    else:
        with pytest.raises(BadInput) as refusal:
            run(np=[2, 4])
        assert str(refusal.value) == words + ADVICE.format(name)
    assert (tmp_path / "began").read_text() == "." * (words is None)


def test_ranks_of_searches_are_those_of_all_trials(limit: Any, run: Any) -> None:
    limit(team={"max_ranks": 4})
    with pytest.raises(BadInput, match="asks for 6 ranks, a step of the team may have 4"):
        run(training={"np": 2}, parallel=3)
    with pytest.raises(BadInput, match="asks for 8 ranks"):
        run(training={"np": 2}, parallel=2, refit_np=8)
    run(training={"np": 2}, parallel=2)


@pytest.mark.slow
def test_other_steps_go_on(store: ArtifactStore, limit: Any, run: Any, tmp_path: Path) -> None:
    use(store, core_h=1, gpu_h=1)
    limit(dag={"gpu_hours": 1})
    examples = run("examples")  # does not train
    limit(dag={"core_hours": 1})
    assert run("examples").uri == examples.uri  # cached
    run("rollout", changed=1)
    run("deployment", changed=2)
    with pytest.raises(BadInput, match="Core hours of DAG 'flights_train'"):
        run("examples", changed=3)
    assert (tmp_path / "began").read_text() == "..."


@pytest.mark.parametrize("seed", range(8))
def test_steps_after_each_other_pass_a_quota_by_one_step_at_most(store: ArtifactStore, limit: Any, seed: int) -> None:
    """Steps of three DAGs use random hours, and are refused once a limit is used up, whatever sums are kept."""
    draw, used = random.Random(seed), Counter[str]()
    of_team = bool(seed % 2)
    limit(**{"team" if of_team else "dag": {"core_hours": 1}})
    hook = RuntimeHook("limited")
    for number in range(40):
        producer = Producer(draw.choice([DAG_ID, "other", "é"]), f"run:{number}", "train")
        output = Output(store.address(producer, "model"), "model")
        spec = StepSpec("train", "m:f", {}, output=output, producer=producer)
        if (used.total() if of_team else used[producer.dag_id]) >= 1:
            with pytest.raises(BadInput, match="Core hours"):
                hook.admit(spec)
            continue
        hook.admit(spec)
        with store.create(output.uri, "model", producer) as writer:
            used[producer.dag_id] += (hours := draw.choice([0, 0.01, 0.05, 0.3]))
            writer.cost = lambda hours=hours: {"core_s": hours * HOUR_S}
            result = StepResult(writer.commit().to_dict(), is_artifact=True, seconds={})
        hook.record_end(spec, result, cache=draw.random() < 0.5)
        half_written = store.internal("_state", "used", producer.dag_id) + "/.36.000@0.000@0.000@0a.1b"
        store.write_text(half_written, "")
        if draw.random() < 0.1:  # the sums are made anew
            store.remove_text(store.internal("_state", "usage.json"))
    assert sum(map(len, map(store.names, [store.internal("_state", "used", name) for name in used]))) < 40


@pytest.mark.slow
def test_sums_are_reused_far_from_a_limit(
    store: ArtifactStore, limit: Any, run: Any, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    reported: dict[str, float] = {}
    monkeypatch.setattr(
        "airflow_hops.extensions.governance.runner.quota_gate.gauge",
        lambda name, value, tags: reported.update({f"{name} {tags}": value}),
    )
    limit(dag={"core_hours": 100})
    use(store, core_h=50)
    run("examples", number=1)
    use(store, core_h=45)
    run("examples", number=2)  # by the sums of the run before
    tags = {"dag_id": DAG_ID, "of": "dag", "limit": "core_hours"}
    assert reported == {f"hops.quota_used_percent {tags}": 50.0}
    sums = Path(store.internal("_state", "usage.json").removeprefix("file://"))
    old = (datetime.now(UTC) - timedelta(seconds=301)).isoformat()
    sums.write_text(json.dumps({**json.loads(sums.read_text()), "at": old}))
    use(store, core_h=0, mib=1)
    damaged = Path(store.uri(DAG_ID, "used-0-0.0-1-0", "train", "model", "manifest.json").removeprefix("file://"))
    damaged.write_text("{")
    run("examples", number=3)
    printed = capfd.readouterr()
    assert f"Not counted for the quotas: file://{damaged}" in printed.out + printed.err
    assert reported == {f"hops.quota_used_percent {tags}": 95.0}
    use(store, core_h=6)
    with pytest.raises(BadInput, match=r"Core hours of DAG 'flights_train': 101\.0 of 100"):
        run("examples", number=4)


@pytest.mark.slow
def test_use_of_remote_stores_is_summed(s3_endpoint: str) -> None:
    import s3fs

    options = {"endpoint_url": s3_endpoint, "use_listings_cache": False}
    s3fs.S3FileSystem(**options).mkdir("quotas")
    store = ArtifactStore("s3://quotas/hops", storage_options=options)
    use(store, core_h=1, mib=1)
    use(store, "other", gpu_h=2)
    assert sum_usage(store, []) == {DAG_ID: Used(HOUR_S, 0, 1 << 20), "other": Used(0, 2 * HOUR_S, 0)}


@pytest.mark.parametrize("dag_id", ["quotas", "quotas_ranks"])
def test_refused_tasks_are_not_retried(
    run_dag: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], dag_id: str,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    store = ArtifactStore(str(tmp_path / "store"))
    use(store, "quotas", gpu_h=3)
    extra = {"store": store.root, "quotas": {"team": {"gpu_hours": 3, "max_ranks": 3}}}
    monkeypatch.setenv("AIRFLOW_CONN_HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra}))
    (task,) = run_dag(
        dag_id, {"began": str(tmp_path / "began")}, "tests/extensions/governance/dags"
    ).get_task_instances()
    assert (task.state, task.try_number, (tmp_path / "began").exists()) == ("failed", 1, False)
    printed = capfd.readouterr()
    refused = "GPU hours of the team: 3.0 of 3 in 30 days" if dag_id == "quotas" else "asks for 4 ranks"
    assert refused in printed.out + printed.err + caplog.text


def test_teams_have_quotas_of_their_own(teams: Any, run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    teams(risk=None, ads=None)
    monkeypatch.delenv("AIRFLOW_CONN_HOPS_DEFAULT")
    monkeypatch.setenv("_AIRFLOW_PROCESS_CONTEXT", "server")
    for team, hours in (("risk", 1), ("ads", 3)):
        use(ArtifactStore(str(tmp_path / team)), core_h=2)
        extra = {"store": str(tmp_path / team), "quotas": {"team": {"core_hours": hours}}}
        monkeypatch.setenv(
            f"AIRFLOW_CONN__{team.upper()}___HOPS_DEFAULT", json.dumps({"conn_type": "hops", "extra": extra})
        )
    with pytest.raises(
        BadInput, match=r"2\.0 of 1 in .* raise 'core_hours' .* connection 'hops_default' of team 'risk'"
    ):
        run(conn_id=in_team("hops_default", "risk"))
    run(conn_id=in_team("hops_default", "ads"))


def test_quotas_are_listed(store: ArtifactStore, limit: Any, hops: Callable[..., Any]) -> None:
    use(store, core_h=1.5, gpu_h=30)
    use(store, "other", gpu_h=0.5)
    limit(team={"gpu_hours": 100}, dag={"gpu_hours": 40}, dags={"missing": {"core_hours": 1}})
    code, out, err = hops("quotas", "--hops-conn-id", "limited", "--output", "json")
    assert (code, "platform@example.org may raise them" in err) == (0, True)
    assert [tuple(row.values()) for row in json.loads(out)] == [
        ("DAG flights_train", "gpu_hours", "30.0", "40", "75.0"),
        ("the team", "gpu_hours", "30.5", "100", "30.5"),
        ("DAG other", "gpu_hours", "0.5", "40", "1.2"),
        ("DAG missing", "core_hours", "0", "1", "0.0"),
        ("DAG missing", "gpu_hours", "0", "40", "0.0"),
    ]
    code, _, err = hops("quotas")
    assert (code, "connection 'hops_default' has no quotas; set its field 'quotas'" in err) == (1, True)
