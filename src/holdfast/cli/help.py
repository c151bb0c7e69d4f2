"""How every command shows its help: usage, purpose, arguments, options, then examples and exit codes.

Typer prints the type of every flag and argument (``--json <bool>``, ``{PATH}...``), differently in each release. Here
the help is the same in every release: an argument is shown by its name, an option's value by its kind.
"""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

__all__ = ["Command", "examples"]

VALUES = {"path": "PATH", "str": "TEXT", "int": "N", "int range": "N", "float": "X", "float range": "X"}
"""Typer's name of a type -> what the help calls a value of it."""
_TYPE = re.compile(r" ?<(?P<type>[^<>]*(?:<[^>]*>)?[^<>]*)>")


def examples(*lines: str, exit_codes: str | None = None) -> str:
    """Return the end of a command's help: its examples, each comment on the line before, and its exit codes."""
    blocks = ["\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)]
    return "\n\n".join(blocks if exit_codes is None else [*blocks, f"Exit codes: {exit_codes}"])


class Command(TyperCommand):
    """A command whose help is the same in every release of Typer."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words after the command's name in the usage line."""
        return [re.sub(r"[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]

    def get_short_help_str(self, limit: int = 0) -> str:
        """Return the first sentence whole, for the list of commands."""
        return " ".join((self.help or "").partition("\n\n")[0].split())

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                is_option = parameter.param_type_name == "option"
                name = _TYPE.sub(_value if is_option else "", record[0])
                sections["Options" if is_option else "Arguments"].append((name, _in_words(record[1])))
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def _in_words(text: str) -> str:
    """Return a description with the range of its number in words."""
    both = re.sub(r"([\d.]+)<=x<=([\d.]+)", r"\1 to \2", text)
    return re.sub(r"\bx<=([\d.]+)", r"at most \1", re.sub(r"\bx>=([\d.]+)", r"at least \1", both))


def _value(found: re.Match[str]) -> str:
    kind = found["type"]
    return f" {VALUES.get(kind, kind)}"
