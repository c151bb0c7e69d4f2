"""The `holdfast` command: one module a command, each a thin face over the library."""
