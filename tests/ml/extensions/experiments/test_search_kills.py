"""A search that is killed twenty times at random points."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path

import pytest
from searches import Searches

from airflow_hops.extensions.experiments.core.search import IntUniform

pytestmark = pytest.mark.scheduled(part="campaigns")

KILLS = 20


def test_twenty_kills_lose_no_trial(searches: Searches, tmp_path: Path) -> None:
    draw, value, kills, trials = random.Random(0), None, 0, 120
    pid, notes = tmp_path / "pid", tmp_path / "notes"

    def size() -> int:
        return notes.stat().st_size if notes.exists() else 0

    while value is None:
        pid.unlink(missing_ok=True)
        ended = threading.Event()

        def kill(ended: threading.Event = ended, after_s: float = draw.uniform(0, 2)) -> None:
            while not ended.is_set() and not pid.exists():
                time.sleep(0.01)
            begun = size()
            while not ended.is_set() and size() == begun:
                time.sleep(0.01)
            if not ended.wait(after_s):
                os.kill(int(pid.read_text()), signal.SIGKILL)

        if kills < KILLS:
            threading.Thread(target=kill).start()
        with suppress(BrokenProcessPool):
            value = searches(
                "parabola",
                {"x": IntUniform(1, trials)},
                sampler="grid",
                trials=None,
                parallel=2,
                params={"notes": str(notes), "sleeps_s": 0.2},
            )
        kills += value is None
        ended.set()
    result = searches.trials()
    print(f"{kills} kills; trials begun more than once: {[t.number for t in result if t.tries > 1]}")
    assert [(trial.number, trial.params["x"]) for trial in result] == [(n, n + 1) for n in range(trials)]
    assert all(trial.state == "complete" or trial.tries == 3 for trial in result)
    opened = searches.optuna().trials
    assert [trial.number for trial in opened] == list(range(trials)) and all(t.state.is_finished() for t in opened)
    assert searches.record().best == 0 and sum(searches.record().counts.values()) == trials
    assert kills == KILLS
