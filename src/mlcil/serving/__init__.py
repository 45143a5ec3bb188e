"""What people use: the trained model of a run, and an explanation of its tags."""
