"""Errors that steps and operators raise; their messages show no secrets.

An error of this module keeps its class and attributes on its way from a process to another: from a rank to its step,
from a step to its Airflow worker (:class:`StepFailed`), and from a process of a pool.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Literal, Self, TypeVar

from airflow_hops.core.redaction import redacted

Cause = Literal["full", "lost", "preempted", "unreachable"]
"""Causes of errors that are neither in the input nor in the code: full disk, lost machine, silent service."""


_Error = TypeVar("_Error", bound="HopsError")
_MOST_CHARACTERS = 1000
"""Maximum length of an attribute's text that another process gets."""

_DAG_MODULES = "unusual_prefix_"
"""Beginning of the names that Airflow gives to the modules of DAG files."""


def dag_place() -> str | None:
    """Returns file and line of the DAG file that Airflow is reading, ``file:line``; None outside of one."""
    frame = sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        if str(frame.f_globals.get("__name__")).startswith(_DAG_MODULES):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
    return None


def add_place(error: BaseException) -> None:
    """Adds the line of the DAG file to an error, of whose traceback Airflow shows the innermost two calls only."""
    if (place := dag_place()) is not None and not hasattr(error, "__notes__"):
        error.add_note(f"in {place}")


class HopsError(Exception):
    """An error that a retry may fix (a killed rank, a server that does not answer).

    Its message names addresses and values of connections, without their secrets.

    Example:
        >>> from airflow_hops import HopsError
        >>> HopsError("the registry does not answer").retryable
        True
    """

    retryable = True
    cause: Cause | None = None

    def __str__(self) -> str:
        return redacted(super().__str__())

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuilt, (type(self), self.args, vars(self))

    def with_text(self, text: str) -> Self:
        """Returns an error of the same class and attributes with another message."""
        return _rebuilt(type(self), (text,), vars(self))


class BadInput(HopsError):
    """An input of the user cannot be used, and a retry would fail again.

    The message names the file, the field, the value and the expected value.

    Example:
        >>> from airflow_hops import BadInput
        >>> BadInput("flights.csv: column 'late' is empty, expected 0 or 1").retryable
        False
    """

    retryable = False

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        add_place(self)


class InvalidArgument(BadInput):
    """An argument has a value that is not allowed; ``argument`` is its name, ``value`` its value.

    In another process than the one that raised it, a value other than text or a number is its ``repr``.

    Args:
        argument: Name of the argument.
        value: Its value.
        text: The message after these, such as ``", expected 1 or more"``.
        where: The message before these.

    Example:
        >>> from airflow_hops import InvalidArgument
        >>> error = InvalidArgument("epochs", 0, ", expected 1 or more")
        >>> print(error, "|", error.argument, error.value)
        epochs is 0, expected 1 or more | epochs 0
    """

    def __init__(self, argument: str, value: object, text: str, *, where: str = "") -> None:
        super().__init__(f"{where}{argument} is {value!r}{text}")
        self.argument, self.value = argument, value


class ArtifactNotFound(BadInput):
    """There is no artifact, or no such file of one, at the address ``uri``; ``text`` is the message after it.

    Example:
        >>> from airflow_hops import ArtifactNotFound
        >>> print(ArtifactNotFound("s3://store/flights/run/train/model", ": there is no artifact"))
        s3://store/flights/run/train/model: there is no artifact
    """

    def __init__(self, uri: object, text: str = "") -> None:
        super().__init__(f"{uri}{text}")
        self.uri = str(uri)


class DamagedArtifact(HopsError):
    """A file of the artifact at the address ``uri`` is missing or differs from the manifest.

    ``retryable`` says whether another try may succeed, as after a download.

    Example:
        >>> from airflow_hops import DamagedArtifact
        >>> DamagedArtifact("s3://store/m", "s3://store/m/manifest.json is cut off", retryable=False).uri
        's3://store/m'
    """

    def __init__(self, uri: str, text: str, *, retryable: bool) -> None:
        super().__init__(text)
        self.uri, self.retryable = uri, retryable


class UnreadableFile(BadInput):
    """The file ``path``, a path or an address, is damaged, or is not of the expected format or encoding.

    ``text`` is the message after it.

    Example:
        >>> from airflow_hops import UnreadableFile
        >>> UnreadableFile("flights.parquet", ": expected Parquet").path
        'flights.parquet'
    """

    def __init__(self, path: object, text: str = "") -> None:
        super().__init__(f"{path}{text}")
        self.path = str(path)


class UnreadableText(UnreadableFile, ValueError):
    """A file does not contain UTF-8 text or JSON as expected."""


class MissingColumn(BadInput):
    """The data ``where`` (a file, an artifact, a table) have no column ``column``; ``text`` is the message after it.

    Example:
        >>> from airflow_hops import MissingColumn
        >>> error = MissingColumn("flights.csv", "carrier")
        >>> print(error, "|", error.where, error.column)
        flights.csv: there is no column 'carrier' | flights.csv carrier
    """

    def __init__(self, where: object, column: str, text: str = "") -> None:
        super().__init__(f"{where}: there is no column {column!r}{text}")
        self.where, self.column = str(where), column


class SchemaMismatch(BadInput):
    """Column ``column`` of the data ``where`` has the type ``actual`` instead of ``expected``.

    Example:
        >>> from airflow_hops import SchemaMismatch
        >>> error = SchemaMismatch("flights.csv", "distance", "string", "double")
        >>> print(error, "|", error.expected)
        flights.csv: column 'distance' is string, expected double | double
    """

    def __init__(self, where: object, column: str, actual: object, expected: object) -> None:
        super().__init__(f"{where}: column {column!r} is {actual}, expected {expected}")
        self.where, self.column, self.actual, self.expected = str(where), column, str(actual), str(expected)


class RowsNotConserved(HopsError):
    """A step lost or invented rows: ``rows_in`` differ from rows out plus rows rejected, ``rows_out``.

    Example:
        >>> from airflow_hops import RowsNotConserved
        >>> RowsNotConserved(1000, 999, "prepare lost a row").rows_out
        999
    """

    retryable = False

    def __init__(self, rows_in: int, rows_out: int, text: str) -> None:
        super().__init__(text)
        self.rows_in, self.rows_out = rows_in, rows_out


class ModelNotFound(BadInput):
    """The model ``model`` is not deployed, or does not have ``version``: a number, an alias, or None for any.

    Example:
        >>> from airflow_hops import ModelNotFound
        >>> print(ModelNotFound("flights", "champion"))
        model 'flights' has no champion
    """

    def __init__(self, model: str, version: int | str | None = None) -> None:
        super().__init__(f"model {model!r} has no {'version' if version is None else version}")
        self.model, self.version = model, version


class ConnectionFieldError(BadInput):
    """The field ``field`` of an Airflow connection is missing or has a wrong value; ``text`` is the message after it.

    ``conn_id`` is the connection, or None in a step, which knows only its fields.

    Example:
        >>> from airflow_hops import ConnectionFieldError
        >>> ConnectionFieldError("serving_port", " is 'http', expected a number", conn_id="hops_default").field
        'serving_port'
    """

    def __init__(self, field: str, text: str = "", *, conn_id: str | None = None) -> None:
        super().__init__(f"connection field {field!r}{text}")
        self.field, self.conn_id = field, conn_id


class ConnectionNotFound(BadInput):
    """Airflow has no connection ``conn_id``.

    Example:
        >>> from airflow_hops import ConnectionNotFound
        >>> print(ConnectionNotFound("hops_default"))
        there is no connection 'hops_default'
    """

    def __init__(self, conn_id: str) -> None:
        super().__init__(f"there is no connection {conn_id!r}")
        self.conn_id = conn_id


class QuotaExceeded(BadInput):
    """The quota ``quota`` of a team or DAG does not allow more than ``limit``.

    Example:
        >>> from airflow_hops import QuotaExceeded
        >>> QuotaExceeded("gpu_hours", 100, "team 'delays' has used its 100 GPU hours").limit
        100
    """

    def __init__(self, quota: str, limit: float, text: str) -> None:
        super().__init__(text)
        self.quota, self.limit = quota, limit


class ServerUnreachable(HopsError):
    """A service does not answer at ``address``: the model server, MLflow, Spark's master.

    Example:
        >>> from airflow_hops import ServerUnreachable
        >>> ServerUnreachable("mlflow.example:5000", "MLflow does not answer").address
        'mlflow.example:5000'
    """

    def __init__(self, address: object, text: str) -> None:
        super().__init__(text)
        self.address = str(address)


class StoreAway(HopsError):
    """The artifact store ``root`` is not where its address leads: it is not mounted, was moved, or is new.

    Example:
        >>> from airflow_hops import StoreAway
        >>> StoreAway("file:///mnt/hops").root
        'file:///mnt/hops'
    """

    cause = "unreachable"

    def __init__(self, root: str) -> None:
        super().__init__(
            f"the artifact store {root} is away, or new: nothing of a store is there, not even its file _store.json. "
            "Mount it, or correct the field 'store' of the connection of type hops, or '[hops] store'; if it is new, "
            "the first task of a pipeline makes it"
        )
        self.root = root


class Preempted(HopsError):
    """Its machine was asked to end the work, and a retry goes on from what was kept, later than where it began.

    Example:
        >>> from airflow_hops import Preempted
        >>> Preempted("the machine was asked to end").cause
        'preempted'
    """

    cause = "preempted"


class MachineLost(HopsError):
    """The machine that did the work is lost, or is about to go.

    Example:
        >>> from airflow_hops import MachineLost
        >>> MachineLost("executor 3 is lost").cause
        'lost'
    """

    cause = "lost"


class StepFailed(HopsError):
    """A step failed; the message has the reason and its last lines.

    ``step`` is its name, and ``error`` the error of its process: of a class of this module, :class:`BadInput`, or
    :class:`HopsError`. It is None if the step was killed.

    Example:
        >>> from airflow_hops import MissingColumn, StepFailed, step_error
        >>> cause = MissingColumn("flights.csv", "late")
        >>> failure = StepFailed("prepare failed", step="prepare", retryable=False, error=cause)
        >>> step_error(failure).column
        'late'
    """

    def __init__(
        self, message: str, *, step: str, retryable: bool, cause: Cause | None = None, error: HopsError | None = None
    ) -> None:
        super().__init__(message)
        self.step, self.retryable, self.cause, self.error = step, retryable, cause, error


def step_error(exception: BaseException) -> HopsError | None:
    """Returns the error behind an exception of a task, such as that of a callback or a policy of retries.

    If a step failed, this is the error of its process. None if the exception has another reason.

    Args:
        exception: The exception, such as ``context["exception"]``.
    """
    current: BaseException | None = exception
    while current is not None and not isinstance(current, HopsError):
        current = current.__cause__
    return current.error or current if isinstance(current, StepFailed) else current


def kind_of(error: BaseException) -> str:
    """Returns the name of the class of this module that an error is of; empty if it is of none."""
    return next((each.__name__ for each in type(error).__mro__ if each.__module__ == __name__), "")


def details_of(error: BaseException) -> dict[str, object]:
    """Returns the attributes of an error for another process, as JSON values without secrets."""
    attributes = vars(error) if isinstance(error, HopsError) else {}
    return {name: _plain(value) for name, value in attributes.items() if not name.startswith("_")}


def _plain(value: object) -> bool | float | str | None:
    if value is None or isinstance(value, bool | int | float):
        return value
    return redacted(value if isinstance(value, str) else repr(value))[:_MOST_CHARACTERS]


def error_from(kind: str, text: str, *, retryable: bool, details: Mapping[str, object]) -> HopsError:
    """Returns the error of another process; :class:`BadInput` or :class:`HopsError` if this module lacks its class.

    Args:
        kind: Its :func:`kind_of`.
        text: Its message.
        retryable: Whether a retry may succeed.
        details: Its :func:`details_of`.
    """
    named = globals().get(kind)
    if isinstance(named, type) and issubclass(named, HopsError):
        return _rebuilt(named, (text,), {**details, "retryable": retryable})
    return _rebuilt(HopsError if retryable else BadInput, (text,), {"retryable": retryable})


def _rebuilt(kind: type[_Error], args: tuple[object, ...], attributes: Mapping[str, object]) -> _Error:
    error = kind.__new__(kind, *args)  # not the constructor, whose arguments differ by class
    vars(error).update(attributes)
    return error
