"""What people see: tables, curves, the page."""
