"""Requirements on a rehearsal."""

from __future__ import annotations

import pytest
from small_rehearsals import small_rehearsal

from airflow_hops.core.errors import BadInput
from airflow_hops.extensions.rehearsal.core.requirements import check_requirements, failures


@pytest.mark.parametrize(
    ("text", "failure"),
    [
        ("[b]amount: units within 3 days", ""),
        ("[b]amount: units 40% within 1 week", ""),
        ("[b]amount:shift 0.5 sd within 24 hours", ""),
        ("[b]amount: units within 1 day", "found after 3 days, from 40% of the rows times 100 on"),
        ("[b]amount: units 39.9%", "found only from 40% of the rows times 100 on"),
        ("[b]amount: shift 0.4 sd", "found only from shift of 0.5 on"),
        ("[b]amount: shift within 23 hours", "found after 1 day, from shift of 0.5 on"),
        ("[b]amount: scale 2 times within 9 weeks", "not found within 30 comparisons"),
        ("plan: missing", "not found, up to all rows missing"),
        ("rows: labels 20%", "not found, up to 100% of the labels flip"),
        ("age: units", "no fault was planted: Called drifted in 27 of 30"),
        ("false alarms: 1.1/month", ""),
        ("false alarms: 0.3 / week", ""),
        ("false alarms: 12/year", "12.2 are expected, as 3.33% of 30 unchanged windows are not stable"),
    ],
)
def test_fault_must_be_found_at_its_size_in_its_time(text: str, failure: str) -> None:
    check_requirements([text])
    failed = failures(small_rehearsal(), ["[b]amount: units", text])
    assert failed == ([f"{text}: {failure}"] if failure else [])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("amount units", "require is 'amount units', expected FEATURE: FAULT"),
        ("plan: missing within 2 moons", "expected FEATURE: FAULT"),
        ("plan: missing 1.2.3%", r"require is 'plan: missing 1.2.3%', expected FEATURE: FAULT"),
        ("false alarms: few", "expected 'false alarms: N/day'"),
        ("plam: missing", "feature is 'plam', expected one of plan, age, .*rows; did you mean 'plan'"),
        ("plan: mising", "fault of 'plan' is 'mising', expected one of missing; did you mean 'missing'"),
        ("[b]amount: shift 5%", "expected a size in 'sd'"),
    ],
)
def test_requirement_that_names_nothing_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        failures(small_rehearsal(), [text])
