"""Errors of drivers: those that another try would meet again, and others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from airflow_hops.core.errors import BadInput, HopsError
from airflow_hops.extensions.tables.core.sources import FAULTS

_FAULTS_OF_USERS = {"ProgrammingError", "DataError", "NotSupportedError", "IntegrityError"}
"""Errors of PEP 249 that another try would meet again, as Python's of values, unless SQLSTATE says :data:`_PASSING`."""
_FAULTS_OF_MYSQL = (1267, 1364, 3819, 4025)
"""Mixed collations, missing values and broken checks, which drivers of MySQL do not tell from lost sessions."""
_PASSING = ("08", "40", "53", "57")
"""Classes of SQLSTATE: lost connections, rollbacks, lack of resources, and cancellations."""


@contextmanager
def failing(where: str) -> Iterator[None]:
    """Turns errors of a driver into ours: ``BadInput`` if a retry cannot help."""
    try:
        yield
    except HopsError:
        raise
    except Exception as error:
        names = {base.__name__ for base in type(error).__mro__}
        text = f"{where}: {type(error).__name__}: {' '.join(str(error).split())}"
        if isinstance(error, ImportError) or "AirflowOptionalProviderFeatureException" in names:
            raise BadInput(f"{text}; install the driver beside Airflow, as the provider's page says") from error
        state = sqlstate_of(error)
        is_fault = names & _FAULTS_OF_USERS or isinstance(error, TypeError | ValueError | ArithmeticError)
        is_bad = (
            state.startswith(FAULTS)
            or (error.args or (None,))[0] in _FAULTS_OF_MYSQL
            or (is_fault and not state.startswith(_PASSING))
        )
        raise (BadInput if is_bad else HopsError)(text) from error


def sqlstate_of(error: BaseException) -> str:
    """Returns SQLSTATE; empty if the driver has none.

    It is an attribute of the error; or, of the first argument, of JDBC a method, of redshift_connector and pg8000 a
    field, and of pyodbc all of it.
    """
    for each in (error, *error.args[:1]):
        state = each.getSQLState() if hasattr(each, "getSQLState") else getattr(each, "sqlstate", None)
        state = each.get("C") if isinstance(each, dict) else state
        if state is None and isinstance(each, str) and re.fullmatch("[0-9A-Z]{5}", each):
            state = each
        if state is not None:
            return str(state)
    return ""
