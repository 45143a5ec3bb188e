"""Small things every room may use: errors, files, configuration, randomness."""
