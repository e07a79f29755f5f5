"""``gcnbatch serve``: predictions over HTTP, and a page in the browser."""
