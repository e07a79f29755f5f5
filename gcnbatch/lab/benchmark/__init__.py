"""``gcnbatch benchmark``: published suites of data sets, our models beside the literature's figures."""
