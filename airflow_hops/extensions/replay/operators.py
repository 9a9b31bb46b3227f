"""Operator that back-tests retraining policies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from airflow_hops.core.errors import HopsError, InvalidArgument
from airflow_hops.core.models.model_record import by_whom
from airflow_hops.core.retraining.policy import RetrainingPolicy
from airflow_hops.operators.base import HopsTask, airflow_error, producer_of
from airflow_hops.operators.links import MODELS_LINK
from airflow_hops.runner.arguments import Age, Length, ModelName, Time
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.extensions.replay.runner.backtest.candidates import Candidates
    from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan


class BacktestOperator(HopsTask):
    """Replays the past with retraining policies and compares their results.

    The champion's own pipeline is run again for each training that a policy asks for. Retries, and back-tests with
    other policies or another price, reuse its models. The XCom holds ``report`` (the URI), ``chosen`` (the chosen
    policy's name), ``policy`` (that policy as JSON; None if it never retrains), and
    ``table``: by policy ``average`` and ``better`` with their intervals, ``trainings``, ``false_alarms``,
    ``core_hours``, ``gpu_hours`` and ``regret``.

    Example::

        BacktestOperator(
            task_id="backtest", model_name="flights", start="2013-01-01", end="2014-01-01",
            policies=["monthly", "drift"], price=0.001,
        )

    Args:
        model_name: The model. (templated)
        start: Start of the history, ISO 8601. (templated)
        end: Its end. (templated)
        policies: Policies by name, None for the one that never retrains; or names: ``never``, ``monthly``, ``weekly``,
            ``drift``, ``performance``.
        every: Length of a period; policies decide at its end.
        first: Length of the first model's training window; None for the length of the champion's.
        label_delays: Delays of labels after their rows, which limit the rows to train on. Policies that use labels are
            tried with each delay, others with the shortest.
        price: Cost of a training, in the metric's unit on average over the whole history. (templated)
        hops_conn_id: Connection of type ``hops``. (templated)
        **kwargs: As ``BaseOperator``.
    """

    template_fields: Sequence[str] = ("model_name", "start", "end", "price", "hops_conn_id")

    operator_extra_links = (MODELS_LINK,)

    def __init__(
        self,
        *,
        model_name: ModelName,
        start: Time | datetime,
        end: Time | datetime,
        policies: Mapping[str, RetrainingPolicy | None] | Sequence[str],
        every: Length = timedelta(days=7),
        first: Length | None = None,
        label_delays: Sequence[Age] = (timedelta(0),),
        price: float | str = 0.0,
        hops_conn_id: str = RuntimeHook.default_conn_name,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.model_name = model_name
        self.start = start
        self.end = end
        self.policies = policies
        self.every = every
        self.first = first
        self.label_delays = label_delays
        self.price = price
        self.hops_conn_id = hops_conn_id
        self.check_arguments(BacktestOperator)
        self._running: Candidates | None = None

    def execute(self, context: Context) -> dict[str, Any]:
        """Runs the back-test and returns its summary for XCom."""
        # Imported here, as parsing DAG files does not need it.
        from airflow_hops.extensions.replay.runner.backtest.candidates import Candidates
        from airflow_hops.extensions.replay.runner.backtest.run import run_backtest

        try:
            hook = RuntimeHook(self.hops_conn_id)
            plan = self._plan(hook)
            self._running = Candidates(hook, plan, self.log.info)
            uri, report = run_backtest(hook.store, plan, self._running, by_whom(producer_of(context)), self.log.info)
        except HopsError as error:
            raise airflow_error(error) from error
        finally:
            self._running = None
        chosen = next(each for each in report.policies if each.name == report.chosen)
        figures = ["average", "better", "false_alarms", "core_hours", "gpu_hours", "regret"]
        table = {
            each.name: {"trainings": len(each.retrainings), **{name: getattr(each, name) for name in figures}}
            for each in report.policies
        }
        return {"report": uri, "chosen": chosen.name, "policy": chosen.policy, "table": table}

    def on_kill(self) -> None:
        """Ends the running steps with all their processes."""
        if self._running is not None:
            self._running.kill()

    def _plan(self, hook: RuntimeHook) -> BacktestPlan:
        from airflow_hops.extensions.replay.runner.backtest.candidates import champion_properties
        from airflow_hops.extensions.replay.runner.backtest.plan import BacktestPlan, moment, named_policies

        policies = self.policies
        if not isinstance(policies, Mapping):
            policies = named_policies(policies, champion_properties(hook, self.model_name))
        return BacktestPlan(
            self.model_name,
            moment("start", self.start),
            moment("end", self.end),
            policies,
            every=self.every,
            first=self.first,
            label_delays=self.label_delays,
            price=_number("price", self.price),
        )


def _number(name: str, value: float | str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidArgument(name, value, ", expected a number") from None
