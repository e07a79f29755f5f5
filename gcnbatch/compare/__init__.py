"""``gcnbatch compare-backends``: prove that backends agree on a model and its data, then measure what each costs.

`session.compare` does all of it: `workload` opens the data, `parity` compares, `timing` and `operations` measure,
`timeline` traces one step, `tables`, `charts`, `page` and `report` show what was found.
"""
