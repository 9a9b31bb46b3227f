"""Runs the documentation's ML-side snippets: JSON on stdin, ``{name: source}``; on stdout ``{name: error}``.

A training function is called, on random examples. Of other calls, which want a user's files, the arguments are held
against the signatures of what is called.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import keras
import numpy as np

IMAGE = {"image": SimpleNamespace(shape=(28, 28, 1), dtype="float32")}


class Context:
    """As much of a training's context as the snippets use; it fits one batch of random examples."""

    feature_outputs = IMAGE
    params = {"lr": 0.01}

    def steps(self, split: str, batch_size: int) -> int:
        return 1

    def fit(self, model: Any, *, epochs: int, batch_size: int, callbacks: list[Any] | None = None) -> None:
        inputs = {name: np.random.rand(4, *column.shape).astype("float32") for name, column in IMAGE.items()}
        model.fit(inputs, np.zeros(4), epochs=1, batch_size=4, callbacks=callbacks, verbose=0)


def build(outputs: dict[str, Any]) -> Any:
    """A binary classifier, for snippets that leave the model to the reader."""
    inputs = {name: keras.Input(column.shape, dtype=column.dtype, name=name) for name, column in outputs.items()}
    logit = keras.layers.Dense(1, activation="sigmoid")(keras.layers.Flatten()(inputs["image"]))
    return keras.Model(inputs, logit)


def run(source: str) -> None:
    tree = ast.parse(source)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    names: dict[str, Any] = {"build": build}
    exec(compile(ast.Module([*imports, *functions], []), "snippet", "exec"), names)
    classes = {**names, **dict(instances(tree, names))}
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        if (called := resolve(call.func, classes)) is not None:
            given = {keyword.arg: None for keyword in call.keywords if keyword.arg}
            method = inspect.isfunction(called) and "." in called.__qualname__
            inspect.signature(called).bind(*[None] * method, *call.args, **given)
    for function in functions:
        if [argument.arg for argument in function.args.args] == ["context"] and "context.restore" not in source:
            names[function.name](Context())


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
    """What a call calls, if that is of this package."""
    if isinstance(function, ast.Name):
        found = names.get(function.id)
    elif isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner = names.get(function.value.id)
        found = getattr(owner, function.attr) if isinstance(owner, ModuleType | type) else None
    else:
        return None
    module = getattr(found, "__module__", None) or ""
    return found if module.startswith("airflow_hops") else None


def main() -> None:
    importlib.import_module("horovod.tensorflow").init()
    errors = {}
    for name, source in json.load(sys.stdin).items():
        try:
            run(source)
            errors[name] = ""
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    print(json.dumps(errors))


if __name__ == "__main__":
    main()
