"""What is asked: classification and distillation losses."""
