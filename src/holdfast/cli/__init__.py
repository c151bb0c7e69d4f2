"""The ``holdfast`` command: one module per command, each a thin layer over the library."""
