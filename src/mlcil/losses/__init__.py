"""Classification and distillation losses."""
