"""A rollout, as both sides speak of it: its plan and limits, what was counted, how far it is, what was decided."""
