"""``gcnbatch compare-backends``: checks that backends agree on a model and its data, then measures them.

`session.compare` runs the whole comparison: `workload` opens the data, `parity` compares, `timing` and `operations`
measure, `timeline` traces one step; `report_tables`, `charts`, `page` and `report_files` write the report.
"""
