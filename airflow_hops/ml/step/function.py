"""Runs a function that was shipped as source code: ``@task.hops``."""

from __future__ import annotations

import builtins
import importlib.util
import linecache
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow_hops.core.artifacts.artifact import Artifact
from airflow_hops.core.errors import BadInput
from airflow_hops.core.steps.protocol import check_json
from airflow_hops.ml.step.context import StepContext

_HEADER = "from __future__ import annotations\n"
"""Disables evaluation of annotations, which may use names that only the DAG file imports."""


def run(context: StepContext, **shipped: Any) -> Any:
    """Calls a shipped function in a step, and returns its result: a JSON value, or the artifact that it wrote.

    Raises:
        BadInput: as :func:`call_shipped`, or the function did not return a JSON value.
    """
    value = call_shipped(context, **shipped)
    if not isinstance(value, Artifact):
        check_json(value, f"what {shipped['function']}() returned")
    return value


def call_shipped(
    context: StepContext,
    *,
    source: str,
    function: str,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    wants_context: bool = False,
) -> Any:
    """Defines a function from its source, calls it, and returns its result.

    Args:
        context: The step's context.
        source: The function's source, without its decorators.
        function: The function's name.
        args: Positional arguments; JSON values.
        kwargs: Keyword arguments; JSON values.
        wants_context: Whether to pass ``context`` as the first argument.

    Raises:
        BadInput: the source does not define the function, or uses a name that is not in it.
    """
    defined = define_shipped(context.scratch, source, function)
    first = (context,) if wants_context else ()
    return call_defined(defined, function, (*first, *args), kwargs or {})


def define_shipped(folder: Path, source: str, function: str) -> Callable[..., object]:
    """Defines a function from its source, which is written to a folder, so that tracebacks show its lines.

    Raises:
        BadInput: the source does not define the function, or uses a name that is not in it.
    """
    # Imports the source from a file, so that tracebacks show its lines and its function can be pickled.
    name = f"hops_task_{function}"
    path = folder / f"{name}.py"
    path.write_text(_HEADER + source)
    # When the traceback is written, the file has been removed with the scratch folder; linecache keeps entries
    # without a modification time.
    linecache.cache[str(path)] = (len(source), None, (_HEADER + source).splitlines(keepends=True), str(path))
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except NameError as error:
        raise _explain(error, function) from error
    except SyntaxError as error:
        raise BadInput(f"the source of {function}() does not parse: {error}\n{source}") from error
    if not callable(getattr(module, function, None)):
        raise BadInput(f"the source of {function}() does not define it:\n{source}")
    defined: Callable[..., object] = getattr(module, function)
    return defined


def call_defined(defined: Callable[..., Any], function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Calls a function from :func:`define_shipped`; raises ``BadInput`` if it uses a name that is not in its source."""
    try:
        return defined(*args, **kwargs)
    except NameError as error:
        raise _explain(error, function) from error


def _explain(error: NameError, function: str) -> Exception:
    """Explains that a name of the DAG file is missing; name errors of other modules are returned unchanged."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    ours = trace is not None and trace.tb_frame.f_globals.get("__name__") == f"hops_task_{function}"
    if not ours or isinstance(error, UnboundLocalError) or hasattr(builtins, str(error.name)):
        return error
    return BadInput(
        f"{function}() uses {error.name!r}, which is defined outside it: only the function's own source is shipped; "
        "import or define it inside the function, or pass it as an argument"
    )
