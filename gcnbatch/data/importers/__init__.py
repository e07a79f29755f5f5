"""Importers of other formats: one module per source format, each with one ``import_…`` function."""
