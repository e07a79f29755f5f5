"""The reader of tables: every format becomes named columns of texts, in blocks of rows.

`formats.open_table` opens a file by its ending and returns a `table.Table`. `numbers` reads matrices without a header
line. `files` reads bytes and lines, compressed or not, within limits.
"""
