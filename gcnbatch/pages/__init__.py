"""HTML pages of all reports: one self-contained file each, without network, light and dark, printable."""
