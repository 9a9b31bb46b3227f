"""A rollout whose processes die: what is decided stands, what is not decided has changed nothing."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from served_models import ConnectedServer, Pipeline

pytestmark = pytest.mark.runtime


def shares(pipeline: Pipeline) -> dict[int, float]:
    return pipeline.server.traffic(pipeline.name)


def test_a_step_and_a_promotion_survive_a_kill(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("onnx"), canary_percent=30)
    plan: dict[str, Any] = {"steps": [60, 100], "min_requests": 20, "keep_versions": 1}
    pipeline.expect(traffic={1: 70, 2: 30})
    pipeline.server.ask(pipeline.name, 100)

    def killed(before: str) -> list[str]:
        return pipeline.kill(pipeline.poll, deployment, before=before, **plan)

    assert killed("record") == []
    assert pipeline.record()["challenger"]["rollout"] is None, "nothing was decided"
    assert pipeline.record()["challenger"]["traffic_percent"] == 30
    assert set(killed("traffic")) == {"record"}
    assert pipeline.record()["challenger"]["traffic_percent"] == 60, "decided, and not yet in effect"
    assert json.loads(pipeline.server.traffic_file.read_text())["models"][pipeline.name] == {"1": 70, "2": 30}
    assert "waiting" in pipeline.poll(deployment, **plan)
    pipeline.expect(traffic={1: 40, 2: 60})
    pipeline.expect(events=[("deployed", 1), ("canary", 2), ("step", 2)])

    pipeline.server.ask(pipeline.name, 60)
    for point in ("traffic", "artifact"):
        killed(point)
        assert pipeline.events()[-1] == ("promoted", 2), point
        assert pipeline.record()["challenger"] is None
    done = pipeline.poll(deployment, **plan)
    assert done.properties["decision"] == "promoted"
    assert [event for event, _ in pipeline.events()].count("promoted") == 1
    pipeline.expect(traffic={2: 100})
    pipeline.expect(loaded=[2], aliases={"champion": 2})
    assert pipeline.server.ask(pipeline.name, 10) == 0


def test_a_rollback_survives_a_kill(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("nan"), canary_percent=50)
    pipeline.expect(traffic={1: 50, 2: 50})
    pipeline.server.ask(pipeline.name, 60)
    assert set(pipeline.kill(pipeline.poll, deployment, before="traffic")) == {"record"}
    assert pipeline.events()[-1] == ("rolled_back", 2)
    assert "'probability' is NaN or infinite" in pipeline.record()["history"][-1]["why"]
    # Nobody looks again, but the next model comes: it begins from what was decided.
    third = pipeline.deploy(pipeline.model("third"), canary_percent=10)
    pipeline.expect(traffic={1: 90, 3: 10})
    assert pipeline.rollout(deployment).properties["decision"] == "rolled_back"
    pipeline.expect(aliases={"champion": 1, "challenger": 3})
    assert shares(pipeline) == {1: 90, 3: 10}
    assert third.properties["champion"] == 1


def test_counts_survive_a_server_kill(pipeline: Pipeline) -> None:
    server = pipeline.server
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("second"), canary_percent=50)
    plan: dict[str, Any] = {"steps": [50, 75, 100], "min_requests": 60}
    pipeline.expect(traffic={1: 50, 2: 50})
    server.ask(pipeline.name, 80)
    assert "requests, 0 failed" in pipeline.poll(deployment, **plan)["waiting"]["text"]
    counts = pipeline.record()["challenger"]["rollout"]["seen"]
    assert counts["1"]["requests"] + counts["2"]["requests"] == 80
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()
    assert "does not answer" in pipeline.poll(deployment, **plan)["waiting"]["text"]
    assert pipeline.record()["challenger"]["rollout"]["seen"] == counts
    server.start()
    server.wait_until_ready()
    pipeline.expect(traffic={1: 50, 2: 50})
    server.ask(pipeline.name, 100)
    result = pipeline.poll(deployment, **plan)
    assert "gets 75%" in result["waiting"]["text"]
    event = pipeline.record()["history"][-1]
    asked = event["canary"]["requests"]
    assert asked + event["stable"]["requests"] == 180
    median = next(finding for finding in event["findings"] if finding["what"] == "latency_p50")
    assert f"of {asked} beyond" in median["text"], "the latencies of both servers"
    pipeline.expect(traffic={1: 25, 2: 75})


def test_undecided_share_is_corrected_and_a_manual_one_respected(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("second"), canary_percent=40)
    pipeline.server.traffic_file.write_text(
        pipeline.server.traffic_file.read_text().replace('"1": 60', '"1": 10').replace('"2": 40', '"2": 90')
    )
    pipeline.expect(traffic={1: 10, 2: 90})
    pipeline.poll(deployment)
    pipeline.expect(traffic={1: 60, 2: 40})


def test_undecided_canary_waits_for_more_requests(pipeline: Pipeline) -> None:
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("failing"), canary_percent=50)
    pipeline.expect(traffic={1: 50, 2: 50})
    # Of each version as many, so that chance does not decide: 5 of 30 and 0 of 30 are in doubt (p = 0.026).
    refused = [
        pipeline.server.call(
            f"/v1/models/{pipeline.name}/versions/{version}:predict",
            {"instances": [{"carrier": "UA", "distance": 1000.0 if number < 5 else 500.0, "scheduled_at": number}]},
        )[0]
        != 200
        for version in (1, 2)
        for number in range(30)
    ]
    assert sum(refused) == 5
    waiting = pipeline.poll(deployment)["waiting"]
    assert "in doubt: refusals: " in waiting["text"]
    # Twice the requests that it was judged by: then it is tested again.
    assert waiting["requests"] == 2 * pipeline.record()["challenger"]["rollout"]["seen"]["2"]["requests"]
    pipeline.server.ask(pipeline.name, 200, far_every=2)
    rollout = pipeline.rollout(deployment)
    assert rollout.properties["decision"] == "rolled_back"
    assert rollout.properties["reasons"][0].startswith("refusals: ")


class CapturingToS3(ConnectedServer):
    """A server that writes what it captures to a bucket."""

    def __init__(self, python: Path, folder: Path, url: str, endpoint: str) -> None:
        super().__init__(python, folder)
        self.flags["capture_base_path"] = self.capture_path = url  # type: ignore[assignment]
        self.endpoint = endpoint

    @property
    def services(self) -> dict[str, str]:
        return {**super().services, "serving_storage_options": json.dumps({"endpoint_url": self.endpoint})}


@pytest.fixture(params=["folder", pytest.param("s3", marks=pytest.mark.scheduled(part="campaigns"))])
def captured_anywhere(
    request: pytest.FixtureRequest, pipeline: Pipeline, runtime_python: Path, tmp_path: Path
) -> Iterator[Pipeline]:
    """A pipeline whose server captures to a folder, or to a bucket."""
    if request.param == "folder":
        yield pipeline
        return
    import s3fs

    endpoint = request.getfixturevalue("s3_endpoint")
    bucket = f"captured-{pipeline.name}".lower().replace("_", "-")
    s3fs.S3FileSystem(endpoint_url=endpoint).mkdir(bucket)
    server = CapturingToS3(runtime_python, tmp_path / "server", f"s3://{bucket}/all of it", endpoint)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("AWS_ENDPOINT_URL", endpoint)
        environment.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
        server.start()
    server.wait_until_ready()
    yield replace(pipeline, server=server)
    server.stop()


def test_live_labels_can_roll_back_a_canary(captured_anywhere: Pipeline) -> None:
    pipeline, server = captured_anywhere, captured_anywhere.server
    pipeline.deploy(pipeline.model("first"))
    deployment = pipeline.deploy(pipeline.model("second"), canary_percent=50)
    rows = [{"carrier": "UA", "distance": 100.0 + 10 * row, "scheduled_at": row} for row in range(60)]
    feedback = []
    for version, label in ((1, 0), (2, 1)):  # both say less than one half: the first is right, the second wrong
        path = f"/v1/models/{pipeline.name}/versions/{version}:predict"
        for number in range(20):
            request_id, batch = f"{pipeline.name}-{version}-{number}", rows[3 * number : 3 * number + 3]
            assert len(server.post(path, {"instances": batch}, {"x-request-id": request_id})["predictions"]) == 3
            feedback += [
                {"model": pipeline.name, "request_id": request_id, "row": row, "label": label} for row in range(3)
            ]
    server.post("/v1/feedback", feedback)
    rollout = pipeline.rollout(deployment, min_requests=1)
    assert rollout.properties["decision"] == "rolled_back"
    (reason,) = rollout.properties["reasons"]
    assert reason.startswith("labels: log loss of 'probability' is ")
    (finding,) = (f for f in pipeline.record()["history"][-1]["findings"] if f["what"] == "labels")
    assert (finding["numbers"]["stable_accuracy"], finding["numbers"]["canary_accuracy"]) == (1.0, 0.0)
    assert finding["numbers"]["canary_rows"] == finding["numbers"]["stable_rows"] == 60
    assert finding["numbers"]["canary_requests"] == finding["numbers"]["stable_requests"] == 20


def test_shares_can_be_set_over_rest(pipeline: Pipeline) -> None:
    """As of a gateway whose files the worker does not see."""
    services = {"serving_traffic_file": ""}
    pipeline.deploy(pipeline.model("first"), services=services)
    deployment = pipeline.deploy(pipeline.model("second"), canary_percent=40, services=services)
    assert shares(pipeline) == {1: 60, 2: 40}, "in effect before the answer"
    pipeline.server.ask(pipeline.name, 100)
    plan: dict[str, Any] = {"steps": [70, 100], "services": services}
    assert "gets 70%" in pipeline.poll(deployment, **plan)["waiting"]["text"]
    assert shares(pipeline) == {1: 30, 2: 70}
    pipeline.server.ask(pipeline.name, 50)
    assert pipeline.rollout(deployment, **plan).properties["decision"] == "promoted"
    assert shares(pipeline) == {2: 100}
