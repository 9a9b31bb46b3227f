"""Names of the splits of examples that this package makes; a user's own may have others."""

TRAIN, EVAL, NEWEST = "train", "eval", "newest"
