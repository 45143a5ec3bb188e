"""The engine: one loop for every method, its optimiser, its checkpoints."""
