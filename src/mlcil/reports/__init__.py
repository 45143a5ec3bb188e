"""What people see: tables, figures, the report page, comparisons and attention maps."""
