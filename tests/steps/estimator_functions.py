"""Training functions of one process: estimators of other frameworks than Keras."""

from __future__ import annotations

from typing import Any

from airflow_hops.hops import TrainContext


def classify_rows(context: TrainContext) -> Any:
    """A pipeline on raw columns, strings among them, told their names by the data frame."""
    from sklearn.compose import make_column_transformer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    rows = context.table("train")
    encode = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["colour"]), (StandardScaler(), ["weight_g", "length_mm"])
    )
    model = make_pipeline(encode, LogisticRegression(C=context.params.get("C", 1.0)))
    model.fit(rows.frame(), rows.labels, logisticregression__sample_weight=rows.weights)
    context.report(1, accuracy=model.score(context.table("eval").frame(), context.table("eval").labels))
    return model


def classify_outputs(context: TrainContext) -> Any:
    """Trees on a matrix of the transform's outputs."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    rows = context.table("train")
    return HistGradientBoostingClassifier(max_iter=5, random_state=context.seed).fit(rows.matrix(), rows.labels)


def regress(context: TrainContext) -> Any:
    """Boosting by hand, in two halves: the second goes on where a checkpoint says that the first has ended."""
    import skops.io
    from sklearn.ensemble import GradientBoostingRegressor

    rows = context.table("train", ["length_mm", "weight_g"])
    saved = context.resumed_files()
    if saved:
        own = skops.io.get_untrusted_types(data=saved["model.skops"])
        model = skops.io.loads(saved["model.skops"], trusted=own)
        print(f"resumed after {model.n_estimators} trees", flush=True)
    else:
        model = GradientBoostingRegressor(n_estimators=5, warm_start=True, random_state=0)
        model.fit(rows.matrix(), rows.labels)
        context.checkpoint_files(5, {"model.skops": skops.io.dumps(model)})
        if context.params.get("fails"):
            raise OSError("something fails for once")
    model.n_estimators = 10
    return model.fit(rows.matrix(), rows.labels)


def learn_keras(context: TrainContext) -> Any:
    """A Keras model, by the same fit that ranks use, but with an optimizer that knows of none."""
    import keras

    inputs = {name: keras.Input(spec.shape, name=name) for name, spec in context.feature_outputs.items()}
    hidden = keras.layers.Dense(4, "relu")(inputs["numeric"])
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid")(hidden))
    model.compile("adam", "binary_crossentropy")
    context.fit(model, epochs=1, batch_size=256)
    return model


def learn_logits(context: TrainContext) -> Any:
    """A Keras model that ends without an activation."""
    import keras

    inputs = {name: keras.Input(spec.shape, name=name) for name, spec in context.feature_outputs.items()}
    hidden = keras.layers.Dense(4, "relu")(inputs["numeric"])
    classes = len(context.target.classes or ()) if context.target.problem == "multiclass" else 1
    model = keras.Model(inputs, keras.layers.Dense(classes, kernel_initializer="ones")(hidden) * 5 - 2)
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True))
    context.fit(model, epochs=1, batch_size=256)
    return model


def return_labels(context: TrainContext) -> Any:
    """No model at all."""
    return context.table("train").labels
