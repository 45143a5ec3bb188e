"""Using a finished run: its model restored, and what it sees in an image."""
