"""How well: metrics and the evaluator."""
