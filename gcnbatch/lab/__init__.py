"""Commands that measure: compare-backends, bench and benchmark. Only the API and the CLI import this folder."""
