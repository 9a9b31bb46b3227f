"""What a user gives to be trained: a function, a function's source, or a script; and how a rank runs it."""

from __future__ import annotations

import inspect
import runpy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_hops.contract.artifacts import BadInput
from airflow_hops.contract.training import TrainingOptions
from airflow_hops.hops.context import TrainContext
from airflow_hops.runtime.step.context import resolve
from airflow_hops.runtime.step.function import call_defined, define_shipped

MODEL_NAME = "model"
"""The global of a script that is taken for its model."""

_SOURCE_BYTES = 2 << 20


@dataclass(frozen=True)
class Program:
    """The user's code; one of its fields is given.

    Attributes:
        function: ``module:function``, called as ``function(context)``.
        script: Path of a Python file, relative to a folder of user code, which runs as ``__main__``.
        arguments: What the script finds in ``sys.argv``.
        shipped: A function's source, with its arguments: see :func:`airflow_hops.runtime.step.function.call_shipped`.
    """

    function: str | None = None
    script: str | None = None
    arguments: tuple[str, ...] = ()
    shipped: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("function", "script", "shipped") if getattr(self, name)]
        if len(given) != 1:
            raise BadInput(
                f"a training is given by one of train and script, found {' and '.join(given) or 'none of them'}"
            )

    @classmethod
    def of_training(cls, options: TrainingOptions) -> Program:
        """What a training runs."""
        return cls(options.train, options.script, options.script_args, options.shipped)

    @property
    def name(self) -> str:
        """What to call it."""
        return str(self.function or self.script or f"{(self.shipped or {}).get('function')}()")

    def sources(self, code_paths: Sequence[str]) -> dict[str, str]:
        """The user's code, by path: the package or module of a function, a script, or a function's source.

        Of a package, files of 2 MiB together.

        Args:
            code_paths: Folders of user code.
        """
        if self.shipped is not None:
            return {f"{self.shipped['function']}.py": str(self.shipped["source"])}
        top = str(self.script or self.name.partition(":")[0].partition(".")[0])
        for base in map(Path, code_paths):
            files = [base / top] if self.script else sorted((base / top).rglob("*.py")) or [base / f"{top}.py"]
            found, left = {}, _SOURCE_BYTES
            for file in filter(Path.is_file, files):
                left -= file.stat().st_size
                if left >= 0:
                    found[file.relative_to(base).as_posix()] = file.read_text(errors="replace")
            if found:
                return found
        return {}

    def run(self, context: TrainContext, folder: Path) -> Any:
        """Runs it on this rank.

        Args:
            context: The first argument of a function, unless a shipped one does not want it; what
                :func:`airflow_hops.hops.context.current_context` answers in a script.
            folder: Where a shipped source may be written.

        Returns:
            What the function returned, or what the script left in its global ``model``; None if it left nothing.

        Raises:
            BadInput: there is no such function or script, it cannot be called with a context, or does not parse.
        """
        if self.script is not None:
            return self._run_script(find_script(self.script))
        if self.shipped is None:
            function = resolve(self.name)
            _check_signature(self.name, function)
            return function(context)
        shipped = self.shipped
        defined = define_shipped(folder, shipped["source"], shipped["function"])
        first = (context,) if shipped.get("wants_context") else ()
        return call_defined(
            defined, shipped["function"], (*first, *shipped.get("args", ())), shipped.get("kwargs") or {}
        )

    def _run_script(self, path: Path) -> Any:
        before, sys.argv = sys.argv, [str(path), *self.arguments]
        sys.path.insert(0, str(path.parent))
        try:
            return runpy.run_path(str(path), run_name="__main__").get(MODEL_NAME)
        except SyntaxError as error:
            raise BadInput(f"script {self.script!r} does not parse: {error}") from error
        except SystemExit as end:
            if end.code not in (None, 0):
                raise BadInput(f"script {self.script!r} ended itself by sys.exit({end.code!r})") from None
            return None
        finally:
            sys.argv = before
            sys.path.remove(str(path.parent))


def find_script(script: str) -> Path:
    """The file of a script, below a folder on the import path.

    Raises:
        BadInput: there is none.
    """
    path = Path(script)
    for candidate in [path] if path.is_absolute() else [Path(folder) / path for folder in sys.path if folder]:
        if candidate.is_file():
            return candidate.resolve()
    raise BadInput(
        f"script {script!r}: there is no such file on the step's path ({', '.join(sys.path[:4])}, …); user code lives "
        "beside the DAG file"
    )


def _check_signature(name: str, function: Any) -> None:
    try:
        inspect.signature(function).bind(None)
    except TypeError as error:
        raise BadInput(f"train function {name!r} cannot be called as train(context): {error}") from None
    except ValueError:
        pass  # a builtin tells nothing of its arguments
