"""``gcnbatch compare-backends``: checks that backends agree on a model and its data, then measures them.

`comparison.compare` runs the whole comparison: `workload` opens the data, `parity` compares, `timing` and `operations`
measure, `timeline` traces one step; `report` and `charts` write the report.
"""
