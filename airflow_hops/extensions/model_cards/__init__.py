"""Model cards: a version's data, training, evaluation, rollout, labels and drift as one Markdown document."""
