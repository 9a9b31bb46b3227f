"""A step that does nothing, but for what its stage imports; :mod:`benchmarks.steps` runs chains of it."""

from __future__ import annotations

import importlib
import json
import resource
import time
from typing import Any


def run(context: Any, stage: str, chain: str) -> Any:
    """Imports a stage, and publishes an artifact that tells when its work began and ended (seconds since the epoch).

    Args:
        context: The step's context.
        stage: Module of the stage.
        chain: What tells the chain from any other, so that no artifact of another is taken for its own.
    """
    importlib.import_module(stage)
    used = resource.getrusage(resource.RUSAGE_SELF)
    began = time.time()
    with context.output() as writer:
        (writer.path / "nothing.json").write_text(json.dumps({"stage": stage, "chain": chain}))
        facts = {"began": began, "cpu_s": used.ru_utime + used.ru_stime, "ended": time.time()}
        return writer.commit(rows={}, metrics=facts)
