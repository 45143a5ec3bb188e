"""The web servers: an HTTP interface and pages for taggers."""
