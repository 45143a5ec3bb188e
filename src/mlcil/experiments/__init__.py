"""The claims: published rows as presets, and the grid that runs them."""
