"""Export of trained models, and the proof that they answer like the original."""
