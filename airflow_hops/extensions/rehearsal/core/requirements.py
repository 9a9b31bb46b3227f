"""Requirements on a rehearsal, by which a pipeline's checks fail if its monitor would not notice."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from airflow_hops.core.errors import BadInput, InvalidArgument
from airflow_hops.core.names import check_known
from airflow_hops.extensions.rehearsal.core.rehearsal import Rehearsal, RehearsedFault

_SECONDS = {"hour": 3_600.0, "day": 86_400.0, "week": 7 * 86_400.0, "month": 30 * 86_400.0, "year": 365 * 86_400.0}
_REQUIREMENT = re.compile(
    r"(?P<feature>.*?)\s*:\s*(?P<fault>\w+)(?:\s+(?P<size>\d+(?:\.\d+)?)\s*(?P<unit>%|sd|times))?"
    r"(?:\s+within\s+(?P<count>\d+(?:\.\d+)?)\s+(?P<time>hour|day|week|month)s?)?"
)
_ALARMS = "false alarms"
_RATE = re.compile(rf"{_ALARMS}\s*:\s*(?P<count>\d+(?:\.\d+)?)\s*/\s*(?P<time>day|week|month|year)")
ROWS = "rows"
"""Name of whole rows among the features."""
_UNITS = {"share": "%", "sd": "sd", "factor": "times"}


class RequirementsFailed(BadInput):
    """A monitor does not find what it should, or has too many false alarms.

    ``failed`` are the requirements that do not hold, each with what was found instead.

    Example:
        >>> from airflow_hops.extensions.rehearsal import RequirementsFailed
        >>> RequirementsFailed(["amount: units within 1 day: not found"]).failed
        ('amount: units within 1 day: not found',)
    """

    def __init__(self, failed: Sequence[str]) -> None:
        self.failed = tuple(failed)
        super().__init__("the monitor does not hold what is required: " + "; ".join(failed))


@dataclass(frozen=True)
class Requirement:
    """A fault that must be found.

    Attributes:
        text: As it was written.
        size: Largest size that may be needed; None for any that is found.
        within_s: Seconds after which it must be found at the latest; None for any time.
    """

    text: str
    feature: str
    fault: str
    size: float | None
    unit: str
    within_s: float | None

    @classmethod
    def parse(cls, text: str) -> Requirement:
        """Reads a requirement, such as "plan: missing 20% within 2 days".

        Raises:
            BadInput: the text has another form.
        """
        match = _REQUIREMENT.fullmatch(text.strip())
        if match is None:
            raise InvalidArgument(
                "require",
                text,
                ", expected FEATURE: FAULT [SIZE%|SIZE sd|SIZE times] [within N hours|days|weeks], such as "
                "'amount: units within 1 day', or 'false alarms: 1/month'",
            )
        size = None if match["size"] is None else float(match["size"])
        within = None if match["count"] is None else float(match["count"]) * _SECONDS[match["time"]]
        share = size / 100 if size is not None and match["unit"] == "%" else size
        return cls(text.strip(), match["feature"], match["fault"], share, match["unit"] or "", within)

    def failure(self, report: Rehearsal) -> str | None:
        """Returns what was found instead; None if the requirement holds.

        Raises:
            BadInput: the rehearsal has no such feature or fault, or its sizes have another unit.
        """
        states = {each.name: each for each in report.features}
        own = {each.fault: each for each in report.faults if (each.feature or ROWS) == self.feature}
        check_known(
            "require: feature", self.feature, dict.fromkeys([*states, *(f.feature or ROWS for f in report.faults)])
        )
        if not own:
            return f"{self.text}: no fault was planted: {states[self.feature].because}"
        check_known(f"require: fault of {self.feature!r}", self.fault, own)
        result = own[self.fault]
        if self.unit and self.unit != _UNITS[result.unit]:
            raise InvalidArgument("require", self.text, f", expected a size in {_UNITS[result.unit]!r}")
        if result.size is None:
            return f"{self.text}: not found, up to {result.words}"
        if self.size is not None and result.size > self.size:
            return f"{self.text}: found only from {result.words} on"
        if result.after is None:
            return f"{self.text}: not found within {len(report.windows)} comparisons"
        wait_s = result.after * report.every_s
        if self.within_s is not None and wait_s > self.within_s:
            return f"{self.text}: found after {duration(wait_s)}, from {result.words} on"
        return None


def failures(report: Rehearsal, require: Sequence[str]) -> list[str]:
    """Returns the requirements that a rehearsal does not hold, each with what was found instead.

    Args:
        report: The rehearsal.
        require: Faults that must be found (:class:`Requirement`), and "false alarms: 1/month" for the most comparisons
            of unchanged rows that may find something.

    Raises:
        BadInput: a requirement has another form, or names what was not rehearsed.
    """
    alarms = [_alarms(report, text) for text in require if text.startswith(_ALARMS)]
    faults = [Requirement.parse(text).failure(report) for text in require if not text.startswith(_ALARMS)]
    return [failure for failure in (*faults, *alarms) if failure]


def check_requirements(require: Sequence[str]) -> None:
    """Checks the form of requirements, before anything runs. Raises BadInput like :func:`failures`."""
    for text in require:
        if not text.startswith(_ALARMS):
            Requirement.parse(text)


def _alarms(report: Rehearsal, text: str) -> str | None:
    match = _RATE.fullmatch(text.strip())
    if match is None:
        raise InvalidArgument("require", text, ", expected 'false alarms: N/day', or /week, /month or /year")
    expected = report.false_alarms[0] * _SECONDS[match["time"]] / report.every_s
    if expected <= float(match["count"]):
        return None
    share = f"{100 * report.false_alarms[0]:.3g}% of {len(report.windows)} unchanged windows"
    return f"{text}: {expected:.3g} are expected, as {share} are not stable"


def duration(seconds: float) -> str:
    """Returns a length of time in words, such as "2 days"."""
    unit = "day" if seconds >= _SECONDS["day"] else "hour"
    number = float(f"{seconds / _SECONDS[unit]:.3g}")
    return f"{number:g} {unit}{'' if number == 1 else 's'}"


def row_of(found: RehearsedFault, report: Rehearsal) -> tuple[str, ...]:
    """Returns a fault in words: feature, fault, smallest change, time, what it is called, retraining, what slips by."""
    size = found.words if found.size is not None else f"not found, up to {found.words}"
    after = "" if found.after is None else duration(found.after * report.every_s)
    scale, unit = (1.0, "") if report.problem == "regression" else (100.0, " points")
    effect = "?" if found.effect is None else f"{scale * found.effect:.3g}{unit}"
    loss = "" if found.loss is None or not report.metric else f", {report.metric} {found.loss:+.3g}"
    called = (found.cause or found.verdict).replace("_", " ")
    return (
        found.feature or ROWS,
        found.fault,
        size,
        after,
        called,
        "yes" if found.retraining else "no",
        effect + loss,
    )
