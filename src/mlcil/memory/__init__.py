"""What is kept: rehearsal buffers. They hold indices and labels, never pixels."""
