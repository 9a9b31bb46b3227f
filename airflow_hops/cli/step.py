"""Runs a step as tasks do, to see what it finds where it runs."""

from __future__ import annotations

from typing import Any

from airflow_hops.core.steps.protocol import StepSpec
from airflow_hops.runner.runtime import RuntimeHook


def probe_step(hook: RuntimeHook) -> dict[str, Any]:
    """Returns the findings of a step of the connection's launcher: :func:`airflow_hops.ml.step.probe.run`.

    Raises:
        BadInput: the launcher is unknown, or its options are wrong.
        HopsError: the step cannot start, or does not reach the store.
    """
    settings = hook.settings
    launcher = hook.make_launcher(settings.launcher, **settings.launcher_options)
    spec = StepSpec("doctor", "airflow_hops.ml.step.probe:run")
    return dict(hook.run(spec, cache=False, launcher=launcher, on_line=lambda line: None).value)
