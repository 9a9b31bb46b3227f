"""Programs to train: a function, a function's source, or a script; and how a rank runs them."""

from __future__ import annotations

import inspect
import json
import logging
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.core.contract.artifacts import BadInput
from airflow_hops.core.contract.training import TrainingOptions
from airflow_hops.ml.step.context import find_file, resolve
from airflow_hops.ml.step.function import call_defined, define_shipped
from airflow_hops.ml.training.context import TrainContext

MODEL_NAME = "model"
"""The global of a script that is taken for its model."""

NOTEBOOK_SUFFIX = ".ipynb"
_SOURCE_CHARACTERS = 2 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Program:
    """The user's code; one of its fields is given.

    Attributes:
        function: ``module:function``, called as ``function(context)``.
        script: Path of a Python file, or of a notebook (``.ipynb``), relative to a folder of user code, which runs as
            ``__main__``.
        arguments: What the script finds in ``sys.argv``.
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
        """Returns a name for people."""
        return str(self.function or self.script or f"{(self.shipped or {}).get('function')}()")

    def sources(self, code_paths: Sequence[str]) -> dict[str, str]:
        """The user's code, by path: the package or module of a function, a script, or a function's source.

        A notebook is without its outputs. Of a package, files of 2 MiB together; a warning names those left out.

        Args:
            code_paths: Folders of user code.
        """
        if self.shipped is not None:
            return {f"{self.shipped['function']}.py": str(self.shipped["source"])}
        top = str(self.script or self.name.partition(":")[0].partition(".")[0])
        for base in map(Path, code_paths):
            files = [base / top] if self.script else sorted((base / top).rglob("*.py")) or [base / f"{top}.py"]
            result, left = {}, _SOURCE_CHARACTERS
            for file in filter(Path.is_file, files):
                text, name = _source(file), file.relative_to(base).as_posix()
                if len(text) <= left:
                    result[name] = text
                    left -= len(text)
                else:
                    log.warning(
                        "%s: its source is not recorded with the training: it has %d characters, of %d that are "
                        "recorded %d are left",
                        *(file, len(text), _SOURCE_CHARACTERS, left),
                    )
            if any(map(Path.is_file, files)):
                return result
        return {}

    def run(self, context: TrainContext, folder: Path) -> Any:
        """Runs it on this rank.

        Args:
            context: The first argument of a function, unless a shipped one does not want it; what
                :func:`airflow_hops.ml.training.context.current_context` answers in a script.
            folder: Where a shipped source may be written.

        Returns:
            What the function returned, or what the script left in its global ``model``; None if it left nothing.

        Raises:
            BadInput: there is no such function or script, it cannot be called with a context, or does not parse.
        """
        if self.script is not None:
            return self._run_script(find_file(self.script, "script"), context.params)
        function, values, named = self._call(folder, context)
        named |= _hyperparameters(self.name, function, values, named, context.params)
        if self.shipped is None:
            return function(*values, **named)
        return call_defined(function, self.shipped["function"], values, named)

    def check_takes(self, names: Sequence[str] | None, others: Sequence[str], folder: Path) -> None:
        """Looks whether the user's function can be called with these hyperparameters.

        One that takes nothing but a context finds them there, as a script does.

        Args:
            names: Of those that vary; None where that is not known beforehand, so that only the function is looked for.
            others: Of those that are constant.
            folder: Where a shipped source may be written.

        Raises:
            BadInput: there is no such function, it takes some hyperparameters but not all of these, or others.
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

    def _call(self, folder: Path, context: Any) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        """The function, and its arguments but for hyperparameters."""
        shipped = self.shipped
        if shipped is None:
            return resolve(self.name), (context,), {}
        defined = define_shipped(folder, shipped["source"], shipped["function"])
        first = (context,) if shipped.get("wants_context") else ()
        return defined, (*first, *shipped.get("args", ())), dict(shipped.get("kwargs") or {})

    def _run_script(self, path: Path, params: Mapping[str, Any]) -> Any:
        before, sys.argv = sys.argv, [str(path), *self.arguments]
        sys.path.insert(0, str(path.parent))
        try:
            if path.suffix == NOTEBOOK_SUFFIX:
                from airflow_hops.ml.stages.notebook.script import run_notebook

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
            sys.argv = before
            sys.path.remove(str(path.parent))


def _source(file: Path) -> str:
    """Reads a source file; of a notebook all but its outputs, which are larger than its code."""
    text = file.read_text(errors="replace")
    if file.suffix != NOTEBOOK_SUFFIX:
        return text
    try:
        content = json.loads(text)
        for cell in content["cells"]:
            if cell["cell_type"] == "code":
                cell["outputs"], cell["execution_count"] = [], None
        return json.dumps(content, indent=1, ensure_ascii=False)
    except (ValueError, LookupError, TypeError):
        return text  # of a format before 4, or none


def _hyperparameters(
    name: str, function: Any, values: tuple[Any, ...], named: Mapping[str, Any], params: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the hyperparameters that a function takes by name; ``BadInput`` if it cannot be called."""
    try:
        signature = inspect.signature(function)
    except ValueError:
        return {}  # a builtin tells nothing of its arguments
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
