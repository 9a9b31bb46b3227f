"""``@task.hops``, ``@task.hops_statistics`` and ``@task.hops_schema``: functions of the DAG file run as steps."""

from __future__ import annotations

import builtins
import dis
import hashlib
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_hops.airflow_internals.tasks import KNOWN_CONTEXT_KEYS, DecoratedOperator, task_decorator_factory
from airflow_hops.core.steps.protocol import check_json
from airflow_hops.operators.base import HopsOperator
from airflow_hops.operators.schema import FUNCTION, SchemaOperator
from airflow_hops.operators.statistics import StatisticsOperator
from airflow_hops.runner.runtime import RuntimeHook

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_hops.airflow_internals.tasks import TaskDecorator

_CONTEXT = "context"


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
    """

    custom_operator_name = "@task.hops"
    entry: ClassVar[str] = "airflow_hops.ml.step.function:run"
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *HopsOperator.template_fields)
    cacheable: ClassVar[bool] = False

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        output_kind: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.wants_context = _first_parameter(python_callable) == _CONTEXT
        if self.wants_context:
            _hide(python_callable, _CONTEXT)
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
        if "loop" in _unbound(python_callable, op_args or (), op_kwargs or {}):
            raise ValueError(
                f"@task.hops: {name}() has a parameter 'loop', which Airflow cannot hand over to the step; pass what "
                'it needs, such as number="{{ loop.index }}"'
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
        names = {"uri", "kind", "fingerprint"}
        return {name: v for name, v in arguments.items() if isinstance(v, Mapping) and names <= v.keys()}

    def _context_values(self, context: Context) -> dict[str, Any]:
        """Returns the values of Airflow's context that are parameters of the function (``ds``, ``run_id``)."""
        unbound = _unbound(self.python_callable, self.op_args, self.op_kwargs)
        values: dict[str, Any] = {}
        for name in [name for name in unbound if name in KNOWN_CONTEXT_KEYS]:
            value: Any = context.get(name)
            if isinstance(value, datetime):
                value = value.isoformat()
            elif isinstance(value, Mapping):
                value = dict(value)
            values[name] = value
        return values


class StageDecoratedOperator(HopsDecoratedOperator):
    """Base of operators of a stage that ship a function of the DAG file; the stage's own operator is the second base.

    Args:
        python_callable: The function, shipped as that of ``@task.hops``.
        **kwargs: As the operator of the stage, without the arguments that the function replaces.

    Raises:
        ValueError: an argument that the function replaces is set too, or the function cannot be shipped.
    """

    cacheable: ClassVar[bool] = True
    replaces: ClassVar[Sequence[str]]
    """Arguments of the stage's operator that the function replaces."""
    function_param: ClassVar[str | None] = None
    """Parameter of the step with the function."""

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        for name in self.replaces:
            if (value := kwargs.pop(name, None)) is not None:
                raise ValueError(
                    f"{self.custom_operator_name}: {name} is {value!r}; expected none, as "
                    f"{python_callable.__name__}() replaces it"
                )
        super().__init__(python_callable=python_callable, output_kind=type(self).output_kind, **kwargs)

    def step_params(self, context: Context) -> dict[str, Any]:
        """Returns the parameters of the stage, and the function."""
        params: dict[str, Any] = super(HopsDecoratedOperator, self).step_params(context)
        return {**params, self.function_param: self.shipped(context)} if self.function_param else params

    def step_inputs(self) -> Mapping[str, Any]:
        """Returns the inputs of the stage, and the artifacts among the function's arguments."""
        return {**super().step_inputs(), **super(HopsDecoratedOperator, self).step_inputs()}

    def shipped(self, context: Context) -> dict[str, Any]:
        """Returns the function with its arguments."""
        return HopsDecoratedOperator.step_params(self, context)


class StatisticsDecoratedOperator(StageDecoratedOperator, StatisticsOperator):
    """A :class:`~airflow_hops.operators.statistics.StatisticsOperator` whose options a function returns.

    The function returns ``tfdv.StatsOptions``, instead of the argument ``options``.

    Example::

        @task.hops_statistics(examples=examples.output)
        def statistics():
            import tensorflow_data_validation as tfdv

            def by_season(batch):
                ...

            return tfdv.StatsOptions(experimental_slice_functions=[by_season])
    """

    custom_operator_name = "@task.hops_statistics"
    entry: ClassVar[str] = StatisticsOperator.entry
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *StatisticsOperator.template_fields)
    replaces = ("options",)
    function_param = "options_function"


class SchemaDecoratedOperator(StageDecoratedOperator, SchemaOperator):
    """A :class:`~airflow_hops.operators.schema.SchemaOperator` whose inferred schema a function amends.

    The function's first parameter, of any name, is the inferred ``Schema``, which it changes in place or returns. It
    runs once, when the schema is frozen. The argument ``schema`` cannot be set.

    Example::

        @task.hops_schema(statistics=statistics.output)
        def schema(schema):
            import tensorflow_data_validation as tfdv

            tfdv.get_feature(schema, "dest").presence.min_fraction = 1.0
    """

    custom_operator_name = "@task.hops_schema"
    entry: ClassVar[str] = SchemaOperator.entry
    template_fields: Sequence[str] = ("op_args", "op_kwargs", *SchemaOperator.template_fields)
    replaces = ("schema",)
    function_param = "curate"

    def __init__(self, *, python_callable: Callable[..., Any], **kwargs: Any) -> None:
        first = _first_parameter(python_callable)
        if first in (None, _CONTEXT):
            raise ValueError(
                f"@task.hops_schema: the first parameter of {python_callable.__name__}() gets the inferred schema, "
                f"found {'none' if first is None else repr(first)}"
            )
        _hide(python_callable, first)
        super().__init__(python_callable=python_callable, **kwargs)

    def step_cache_key_parts(self, hook: RuntimeHook) -> dict[str, str]:
        """Returns the parts of the cache key, including the function's source."""
        source: str = self.get_python_source()  # type: ignore[no-untyped-call]
        return {**super().step_cache_key_parts(hook), FUNCTION: hashlib.sha256(source.encode()).hexdigest()}


def decorator(operator: type[HopsDecoratedOperator], **options: Any) -> Callable[..., TaskDecorator]:
    """Returns the task decorator of an operator."""
    return partial(task_decorator_factory, decorated_operator_class=operator, **options)


hops_task = decorator(HopsDecoratedOperator)
statistics_task = decorator(StatisticsDecoratedOperator, multiple_outputs=False)
schema_task = decorator(SchemaDecoratedOperator, multiple_outputs=False)


def _first_parameter(function: Callable[..., Any]) -> str | None:
    code = function.__code__
    return code.co_varnames[0] if code.co_argcount else None


def _unbound(function: Callable[..., Any], args: Collection[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Returns the function's parameters without an argument, including those with a default."""
    signature = inspect.signature(function)
    arguments = signature.bind_partial(*args, **kwargs).arguments
    return [name for name in signature.parameters if name not in arguments]


def _hide(function: Callable[..., Any], name: str | None) -> None:
    """Removes a parameter from the signature that Airflow binds."""
    signature = inspect.signature(function)
    parameters = [each for each in signature.parameters.values() if each.name != name]
    function.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]


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
