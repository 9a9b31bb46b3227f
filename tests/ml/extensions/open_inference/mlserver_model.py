"""Writes a scikit-learn model of given coefficients for MLServer; runs in MLServer's environment."""

import json
import sys
from pathlib import Path

import joblib
import numpy as np
from sklearn.linear_model import LogisticRegression

folder, coefficients = Path(sys.argv[1]), json.loads(sys.argv[2])
model = LogisticRegression()
model.classes_ = np.array([0, 1])
model.coef_, model.intercept_ = np.array([coefficients["coef"]]), np.array([coefficients["intercept"]])
joblib.dump(model, folder / "model.joblib")
settings = {
    "name": "late",
    "implementation": "mlserver_sklearn.SKLearnModel",
    "parameters": {"uri": "./model.joblib", "version": "1"},
}
(folder / "model-settings.json").write_text(json.dumps(settings))
(folder / "settings.json").write_text(json.dumps({**coefficients["ports"], "parallel_workers": 0, "host": "127.0.0.1"}))
