"""Shipped experiments, one YAML file each; `config.loading` reads them."""
