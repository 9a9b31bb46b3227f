"""The documentation's snippets of the ML side.

A training function is called, on random examples. Of other calls, which want a user's files, the arguments are held
against the signatures of what is called.
"""

from __future__ import annotations

import ast
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import horovod.tensorflow as hvd
import keras
import numpy as np
import pytest
from snippets import SNIPPETS, Snippet, examples_of, is_of_ml_side, run_example, those

IMAGE = {"image": SimpleNamespace(shape=(28, 28, 1), dtype="float32")}
TABLE = {
    "numbers": SimpleNamespace(shape=(3,), dtype="float32", width=3, vocabulary_size=None),
    "carrier": SimpleNamespace(shape=(), dtype="int64", width=None, vocabulary_size=5),
}


class Context:
    """As much of a training's context as the snippets use; it fits one batch of random examples."""

    params = {"lr": 0.01}
    size = 1

    def __init__(self, feature_outputs: dict[str, Any]) -> None:
        self.feature_outputs = feature_outputs

    def steps(self, split: str, batch_size: int) -> int:
        return 1

    def fit(self, model: Any, *, epochs: int, batch_size: int, callbacks: list[Any] | None = None) -> None:
        outputs = self.feature_outputs.items()
        inputs = {name: np.random.rand(4, *column.shape).astype(column.dtype) for name, column in outputs}
        model.fit(inputs, np.zeros(4), epochs=1, batch_size=4, callbacks=callbacks, verbose=0)


def build(outputs: dict[str, Any]) -> Any:
    """A binary classifier, for snippets that leave the model to the reader."""
    inputs = {name: keras.Input(column.shape, dtype=column.dtype, name=name) for name, column in outputs.items()}
    logit = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Flatten()(inputs["image"]))
    return keras.Model(inputs, logit)


def define(source: str) -> dict[str, Any]:
    """Returns the names that a snippet imports and defines."""
    names: dict[str, Any] = {"build": build}
    definitions = [n for n in ast.parse(source).body if isinstance(n, ast.Import | ast.ImportFrom | ast.FunctionDef)]
    exec(compile(ast.Module(definitions, []), "snippet", "exec"), names)
    return names


def check_calls(source: str) -> None:
    """Holds the arguments of calls of this package against the signatures."""
    tree, names = ast.parse(source), define(source)
    names |= dict(instances(tree, names))
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if (called := resolve(call.func, names)) is not None:
            values = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            method = inspect.isfunction(called) and "." in called.__qualname__
            inspect.signature(called).bind(*[None] * method, *call.args, **values)


def training_functions(source: str) -> list[str]:
    """Names of the functions that take a training's context, but for those that restore a checkpoint."""
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    if "context.restore" in source:
        return []
    return [f.name for f in functions if [argument.arg for argument in f.args.args] == ["context"]]


def train(sources: dict[str, str]) -> list[str]:
    """Calls the snippets' training functions, on the one rank of a gang; returns the names of those called."""
    hvd.init()
    called = []
    for name, source in sources.items():
        names = define(source)
        for function in training_functions(source):
            try:
                names[function](Context(TABLE if "vocabulary_size" in source else IMAGE))
            except Exception as error:
                raise AssertionError(f"{name}: {function}: {error}") from error
            called.append(f"{name}: {function}")
    return called


def instances(tree: ast.Module, names: dict[str, Any]) -> Iterator[tuple[str, type]]:
    """The variables that hold an object of an imported class, with the class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.withitem):
            target, value = node.optional_vars, node.context_expr
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        else:
            continue
        if isinstance(target, ast.Name) and isinstance(value, ast.Call) and isinstance(value.func, ast.Name):
            made = names.get(value.func.id)
            if isinstance(made, type):
                yield target.id, made


def resolve(function: ast.expr, names: dict[str, Any]) -> Any:
    """Returns the object that a call calls, if it is of this package."""
    if isinstance(function, ast.Name):
        result = names.get(function.id)
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner = names.get(function.value.id)
        result = getattr(owner, function.attr) if isinstance(owner, ModuleType | type) else None
    else:
        return None
    module = getattr(result, "__module__", None) or ""
    return result if module.startswith("airflow_hops") else None


@those("python", ml_side=True)
def test_snippets_call_existing_names(snippet: Snippet) -> None:
    check_calls(snippet.source)


@pytest.mark.slow
def test_training_functions_of_snippets_train(own_process: Callable[..., Any]) -> None:
    snippets = [each for each in SNIPPETS if each.language == "python" and not each.fragment]
    sources = {each.name: each.source for each in snippets if is_of_ml_side(each.source)}
    assert len(own_process(train, sources)) >= 3


def run_named(name: str, folder: Path) -> None:
    """Runs an example, on the one rank of a training."""
    os.chdir(folder)
    hvd.init()
    (example,) = (each for each in examples_of(ml_side=True) if each.name == name)
    run_example(example)


@pytest.mark.parametrize("name", [example.name for example in examples_of(ml_side=True)])
def test_an_example_in_a_docstring_prints_what_it_says(
    name: str, tmp_path: Path, own_process: Callable[..., None]
) -> None:
    own_process(run_named, name, tmp_path)
