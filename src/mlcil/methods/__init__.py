"""How it learns: one short file per method and the registry that names them."""
