"""``@task.hops``: runs a plain function of the DAG file in the runtime environment."""

from __future__ import annotations

import builtins
import dis
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory
from airflow.sdk.definitions.context import KNOWN_CONTEXT_KEYS

from airflow_hops.core.contract.protocol import check_json
from airflow_hops.operators.base import HopsOperator

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator

_CONTEXT_PARAMETER = "context"


class HopsDecoratedOperator(DecoratedOperator, HopsOperator):
    """``@task.hops``: runs a function in the runtime environment. Its source is shipped; arguments and result are JSON.

    Args:
        python_callable: The function. It must import modules in its body; modules beside the DAG file can be imported.
            If its first parameter is named ``context``, it gets the step's
            :class:`~airflow_hops.ml.step.context.StepContext`.
        op_args: Positional arguments. (templated)
        op_kwargs: Keyword arguments. (templated)
        output_kind: Kind of the artifact that the function writes with ``context.output()`` and returns; None for a
            function that returns a plain value.
        launcher: Must be ``local``, this machine.
    """

    custom_operator_name = "@task.hops"
    entry: ClassVar[str] = "airflow_hops.ml.step.function:run"
    cacheable: ClassVar[bool] = False

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        output_kind: str | None = None,
        launcher: str = "local",
        **kwargs: Any,
    ) -> None:
        if launcher != "local":
            raise ValueError(f"@task.hops: launcher is {launcher!r}; expected 'local'")
        self.wants_context = _hide_context(python_callable)
        # Refuses, while the DAG is parsed, functions whose source cannot run by itself.
        name = python_callable.__name__
        if name == "<lambda>" or inspect.iscoroutinefunction(python_callable):
            raise ValueError(f"@task.hops: {name} is not a plain function; expected one written with 'def'")
        outside = sorted(
            {*_global_names(python_callable.__code__), *python_callable.__code__.co_freevars} - {name, *dir(builtins)}
        )
        if outside:
            raise ValueError(
                f"@task.hops: {name}() uses {', '.join(map(repr, outside))}, defined outside it: only the function's "
                "own source is shipped; import or define it inside the function, or pass it as an argument"
            )
        self.output_kind = output_kind  # type: ignore[misc]
        super().__init__(python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, **kwargs)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the function's source and arguments."""
        name = self.python_callable.__name__
        positional = [_plain(value) for value in self.op_args]
        named = {name: _plain(value) for name, value in {**self._context_values(context), **self.op_kwargs}.items()}
        for position, value in [*enumerate(positional), *named.items()]:
            check_json(value, f"argument {position!r} of {name}()")
        source: str = self.get_python_source()  # type: ignore[no-untyped-call]
        return {
            "source": source,
            "function": name,
            "args": positional,
            "kwargs": named,
            "wants_context": self.wants_context,
        }

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the artifacts among the arguments by parameter, for the lineage and for ``context.input(name)``."""
        arguments = inspect.signature(self.python_callable).bind_partial(*self.op_args, **self.op_kwargs).arguments
        return {name: value for name, value in arguments.items() if _is_artifact(value)}

    def _context_values(self, context: Context) -> dict[str, Any]:
        """Returns the values of Airflow's context that are parameters of the function (``ds``, ``run_id``)."""
        signature = inspect.signature(self.python_callable)
        arguments = signature.bind_partial(*self.op_args, **self.op_kwargs).arguments
        wanted = [name for name in signature.parameters if name in KNOWN_CONTEXT_KEYS and name not in arguments]
        values: dict[str, Any] = {}
        for name in wanted:
            value: Any = context.get(name)
            if isinstance(value, datetime):
                value = value.isoformat()
            elif isinstance(value, Mapping):
                value = dict(value)
            values[name] = value
        return values


hops_task: Callable[..., TaskDecorator] = partial(
    task_decorator_factory, decorated_operator_class=HopsDecoratedOperator
)


def _hide_context(function: Callable[..., Any]) -> bool:
    """Removes ``context`` from the signature that Airflow binds; returns whether it was there."""
    code = function.__code__
    if code.co_argcount == 0 or code.co_varnames[0] != _CONTEXT_PARAMETER:
        return False
    signature = inspect.signature(function)
    if _CONTEXT_PARAMETER in signature.parameters:
        parameters = [parameter for parameter in signature.parameters.values() if parameter.name != _CONTEXT_PARAMETER]
        function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return True


def _global_names(code: CodeType) -> Iterator[str]:
    """Yields the names that the code reads from its module, including those in nested functions and classes."""
    instructions = list(dis.get_instructions(code))
    own = {i.argval for i in instructions if i.opname in ("STORE_GLOBAL", "STORE_NAME")}
    for instruction in instructions:
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") and instruction.argval not in own:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def _plain(value: Any) -> Any:
    """Converts the lazy sequence of a mapped task's values to a list."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes | list | tuple) else value


def _is_artifact(value: Any) -> bool:
    return isinstance(value, Mapping) and {"uri", "kind", "fingerprint"} <= value.keys()
