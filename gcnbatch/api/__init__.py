"""The Python interface, which the commands call. `gcnbatch.PUBLIC` lists it."""
