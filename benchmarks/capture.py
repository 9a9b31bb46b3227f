"""Capture of requests to Kafka against capture to files, on and off in turns in one server each; see ``README.md``."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
# Not this folder, whose statistics.py is not the standard library's.
sys.path[:1] = [str(REPOSITORY), str(REPOSITORY / "tests")]

import statistics  # noqa: E402

from rich.console import Console  # noqa: E402

from benchmarks.measurement.serving_targets import CapturingInTurns, Clients  # noqa: E402
from benchmarks.serving import MODELS, WORK, captured_in_turns, set_up  # noqa: E402
from tests.extensions.streams.kafka_brokers import mock_cluster  # noqa: E402

MARK = 0.95


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement")
    parser.add_argument("--turns", type=int, default=4, help="measurements of files and of the topic")
    parser.set_defaults(peers=False)
    given, console = parser.parse_args(), Console(width=160)
    set_up(given, console)
    figures: dict[str, Any] = {}
    with Clients() as clients, mock_cluster() as broker:
        config = WORK / "kafka.json"
        config.write_text(json.dumps(broker.config))
        shutil.rmtree(WORK / "captured", ignore_errors=True)
        to_topic = {"capture_sink": f"kafka://captured?config={config}", "capture_spool_path": WORK / "spool"}
        servers: dict[str, dict[str, Any]] = {"files": {"capture_base_path": WORK / "captured"}, "topic": to_topic}
        for model in MODELS:
            found: dict[str, list[dict[str, float]]] = {way: [] for way in servers}
            for turn in range(given.turns):
                for way in servers if turn % 2 == 0 else reversed(servers):
                    name = f"turns-{way}"
                    with CapturingInTurns(name, WORK / "run", WORK / "models.config", **servers[way]) as target:
                        clients.measure(target, WORK, model, 1, 16, 3.0)
                        found[way].append(captured_in_turns(clients, target, model, given.seconds))
                        console.print(f"{model}, {way}: {found[way][-1]}")
            for way, turns in found.items():
                medians = {key: round(statistics.median(turn[key] for turn in turns), 3) for key in turns[0]}
                figures[f"{model}_{way}"] = medians
    ratios = {}
    for model in MODELS:
        files, topic = (figures[f"{model}_{way}"] for way in servers)
        # The request path is the same code in both, so its CPU is that of both together; the writers differ.
        request_us = (files["cpu_us"] + topic["cpu_us"]) / 2
        rates = [1 / (request_us + way["writer_cpu_us"]) for way in (topic, files)]
        ratios[f"{model}_topic_of_files"] = round(rates[0] / rates[1], 3)
    for key, ratio in ratios.items():
        console.print(f"{key}: {ratio} (mark {MARK})")
    print(json.dumps({"benchmark": "capture", "ratios": ratios, "figures": figures}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
