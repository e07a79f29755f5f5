"""Other formats into data sets: one module per source, each with one ``import_…`` function."""
