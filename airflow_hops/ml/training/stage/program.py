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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Program:
    """The user's code; exactly one of function, script and shipped is set.

    Attributes:
        function: ``module:function``, called as ``function(context)``.
        script: Path of a Python file, or of a notebook (``.ipynb``), relative to a folder of user code; it runs as
            ``__main__``.
        arguments: The script's ``sys.argv`` after its path.
        shipped: A function's source, with its arguments: see :func:`airflow_hops.ml.step.function.call_shipped`.
    """

    function: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] = ()
    shipped: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        ways = [name for name in ("function", "script", "shipped") if getattr(self, name)]
        if len(ways) != 1:
            raise BadInput(
                f"a training is given by one of train and script, found {' and '.join(ways) or 'none of them'}"
            )

    @classmethod
    def of_training(cls, options: TrainingOptions) -> Program:
        """Returns the program of a training."""
        return cls(options.train, options.script, options.script_args, options.shipped)

    @property
    def name(self) -> str:
        """Name for people."""
        return str(self.function or self.script or f"{(self.shipped or {}).get('function')}()")

    def run(self, context: TrainContext, folder: Path) -> Any:
        """Runs the program on this rank; returns a function's result, or a script's global ``model``, if any.

        Args:
            context: The first argument of a function, unless a shipped one does not want it; a script gets it from
                :func:`airflow_hops.ml.training.context.current_context`.
            folder: Folder for a shipped source.

        Raises:
            BadInput: the function or script does not exist, it cannot be called with a context or does not parse, or a
            script makes no model.
        """
        if self.script is not None:
            return self._run_script(find_file(self.script, "script"), context.params)
        function, values, named = self._call(folder, context)
        named |= _hyperparameters(self.name, function, values, named, context.params)
        if self.shipped is None:
            return function(*values, **named)
        return call_defined(function, self.shipped["function"], values, named)

    def check_takes(self, names: Sequence[str] | None, others: Sequence[str], folder: Path) -> None:
        """Checks that the user's function can be called with these hyperparameters.

        A function that takes only a context gets them from it, as a script does.

        Args:
            names: Varying parameters; None to check only that the function exists.
            others: Constant parameters.
            folder: Folder for a shipped source.

        Raises:
            BadInput: the function does not exist, or it takes only some of the varying parameters, or requires others.
        """
        if self.script is not None:
            find_file(self.script, "script")
            return
        function, values, named = self._call(folder, None)
        if names is None:
            return
        taken = _hyperparameters(self.name, function, values, named, dict.fromkeys([*names, *others]))
        if taken and (left := [name for name in names if name not in taken]):
            raise BadInput(
                f"train function {self.name!r} takes {', '.join(sorted(taken))}, but not the parameter {left[0]!r} of "
                "the space; add it to the function, or leave it out of the space"
            )

    def _call(self, folder: Path, context: object) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """Returns the function, and its arguments except hyperparameters."""
        shipped = self.shipped
        if shipped is None:
            return resolve(self.name), (context,), {}
        defined = define_shipped(folder, shipped["source"], shipped["function"])
        first = (context,) if shipped.get("wants_context") else ()
        return defined, (*first, *shipped.get("args", ())), dict(shipped.get("kwargs") or {})

    def _run_script(self, path: Path, params: Mapping[str, object]) -> object:
        argv, sys.argv = sys.argv, [str(path), *self.arguments]
        sys.path.insert(0, str(path.parent))
        try:
            if not _may_make_model(path):
                raise BadInput(
                    f"script {self.script!r} would make no model: nothing assigns its global variable {MODEL_NAME!r} "
                    f"or writes to $HOPS_OUTPUT/saved_model. If a function such as main() trains, let it return the "
                    f"model on each rank, and call it as {MODEL_NAME} = main()"
                )
            if path.suffix == NOTEBOOK_SUFFIX:
                from airflow_hops.ml.step.script import run_notebook

                return run_notebook(path, params).get(MODEL_NAME)
            return runpy.run_path(str(path), run_name="__main__").get(MODEL_NAME)
        except SyntaxError as error:
            raise BadInput(f"script {self.script!r} does not parse: {error}") from error
        except SystemExit as end:
            if end.code not in (None, 0):
                raise BadInput(f"script {self.script!r} ended itself by sys.exit({end.code!r})") from None
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


def _hyperparameters(
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
