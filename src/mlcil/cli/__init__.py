"""The front door: thin commands that parse, call and print."""
