"""The claims: published rows as presets, and grids that run many experiments."""
