"""Runs the user's program in a rank: a function, a function's source, or a script."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import logging
import runpy
import symtable
import sys
import tokenize
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from airflow_hops.core.errors import BadInput
from airflow_hops.core.training.options import TrainingOptions
from airflow_hops.ml.step.context import find_file, resolve
from airflow_hops.ml.step.function import call_defined, define_shipped
from airflow_hops.ml.training.context import TrainContext

MODEL_NAME = "model"
"""Global variable of a script that holds its model."""

NOTEBOOK_SUFFIX = ".ipynb"

log = logging.getLogger(__name__)


def program_name(options: TrainingOptions) -> str:
    """Returns the name of the user's code, for people."""
    return str(options.train or options.script or f"{(options.shipped or {}).get('function')}()")


def run_program(options: TrainingOptions, context: TrainContext, folder: Path) -> Any:
    """Runs the user's code on this rank; returns a function's result, or a script's global ``model``, if any.

    Args:
        options: Options of the training, of which exactly one of ``train``, ``script`` and ``shipped`` is set.
        context: The first argument of a function, unless a shipped one does not want it; a script gets it from
            :func:`airflow_hops.ml.training.context.current_context`.
        folder: Folder for a shipped source.

    Raises:
        BadInput: the function or script does not exist, it cannot be called with a context or does not parse, or a
            script makes no model.
    """
    if options.script is not None:
        return _run_script(options, find_file(options.script, "script"), context.params)
    function, values, named = program_call(options, folder, context)
    named |= hyperparameters(program_name(options), function, values, named, context.params)
    if options.shipped is None:
        return function(*values, **named)
    return call_defined(function, options.shipped["function"], values, named)


def program_call(
    options: TrainingOptions, folder: Path, context: object
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """Returns the user's function, and its arguments except hyperparameters; arguments as :func:`run_program`."""
    shipped = options.shipped
    if shipped is None:
        return resolve(program_name(options)), (context,), {}
    defined = define_shipped(folder, shipped["source"], shipped["function"])
    first = (context,) if shipped.get("wants_context") else ()
    return defined, (*first, *shipped.get("args", ())), dict(shipped.get("kwargs") or {})


def _run_script(options: TrainingOptions, path: Path, params: Mapping[str, object]) -> object:
    argv, sys.argv = sys.argv, [str(path), *options.script_args]
    sys.path.insert(0, str(path.parent))
    try:
        if not _may_make_model(path):
            raise BadInput(
                f"script {options.script!r} would make no model: nothing assigns its global variable {MODEL_NAME!r} "
                f"or writes to $HOPS_OUTPUT/saved_model. If a function such as main() trains, let it return the "
                f"model on each rank, and call it as {MODEL_NAME} = main()"
            )
        if path.suffix == NOTEBOOK_SUFFIX:
            from airflow_hops.ml.step.script import run_notebook

            return run_notebook(path, params).get(MODEL_NAME)
        return runpy.run_path(str(path), run_name="__main__").get(MODEL_NAME)
    except SyntaxError as error:
        raise BadInput(f"script {options.script!r} does not parse: {error}") from error
    except SystemExit as end:
        if end.code not in (None, 0):
            raise BadInput(f"script {options.script!r} ended itself by sys.exit({end.code!r})") from None
        frames = (frame for frame, _ in traceback.walk_tb(end.__traceback__))
        return next((f.f_globals.get(MODEL_NAME) for f in frames if f.f_globals.get("__file__") == str(path)), None)
    finally:
        sys.argv = argv
        sys.path.remove(str(path.parent))


def _source_of(path: Path) -> str:
    if path.suffix != NOTEBOOK_SUFFIX:
        with tokenize.open(path) as file:
            return file.read()
    from airflow_hops.ml.step.source import code_cells, read_notebook

    return "\n".join(cell.source for _, cell in code_cells(read_notebook(path)))


def _may_make_model(path: Path) -> bool:
    """Returns whether a script assigns its global variable for the model, or could leave a model in another way.

    It could if it names what ranks offer for that, runs other code, or imports modules of the user.
    """
    try:
        source = _source_of(path)
        tree, tables = ast.parse(source), [symtable.symtable(source, path.name, "exec")]
    except (SyntaxError, ValueError):  # running it reports the error; a notebook's magics are not Python
        return True
    if any(name in source for name in ("HOPS_OUTPUT", "current_context", "globals(", "exec(", "import *", "runpy")):
        return True
    top = tables[0]
    while tables:
        table = tables.pop()
        if MODEL_NAME in table.get_identifiers():
            symbol = table.lookup(MODEL_NAME)
            if (table is top or symbol.is_declared_global()) and (symbol.is_assigned() or symbol.is_imported()):
                return True
        tables += table.get_children()
    imported = (
        [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    )
    return any(_is_of_user(name.partition(".")[0]) for names in imported for name in names)


def _is_of_user(module: str) -> bool:
    try:
        spec = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        return False
    origin = spec and (spec.origin or next(iter(spec.submodule_search_locations or ()), None))
    if not origin or not Path(origin).is_absolute():
        return False
    return not any(Path(origin).is_relative_to(folder) for folder in (sys.prefix, sys.base_prefix))


def hyperparameters(
    name: str, function: Any, values: tuple[object, ...], named: Mapping[str, object], params: Mapping[str, object]
) -> dict[str, object]:
    """Returns the hyperparameters that a function takes by name; raises BadInput if it cannot be called."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return {}  # a builtin may have no signature
    try:
        others = signature.parameters.keys() - signature.bind_partial(*values, **named).arguments.keys()
        if any(each.kind is each.VAR_KEYWORD for each in signature.parameters.values()):
            others |= params.keys() - signature.parameters.keys()
        taken = {key: value for key, value in params.items() if key in others}
        signature.bind(*values, **named, **taken)
    except TypeError as error:
        raise BadInput(
            f"train function {name!r} cannot be called as train(context) with the hyperparameters "
            f"{', '.join(sorted(params)) or '(none)'}: {error}"
        ) from None
    return taken
