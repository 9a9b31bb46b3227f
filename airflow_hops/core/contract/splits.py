"""Names of the splits of examples that this package makes; users' examples may have others."""

TRAIN, EVAL, NEWEST = "train", "eval", "newest"
