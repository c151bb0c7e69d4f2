"""A Griffe extension: signatures in the reference show a type without the checks attached to it.

To a reader ``Annotated[int, Between(1, 9)]`` means the same as ``int``; the bounds are in the text.
"""

from __future__ import annotations

from typing import Any

import griffe


class PlainAnnotations(griffe.Extension):
    """Replaces ``Annotated[X, …]`` by ``X`` in the fields of classes."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Simplify the annotation of one field."""
        attr.annotation = plain(attr.annotation)


def plain(annotation: Any) -> Any:
    """Return the annotation without what is attached to it, including inside unions."""
    if isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Annotated":
        return annotation.slice.elements[0] if isinstance(annotation.slice, griffe.ExprTuple) else annotation.slice
    if isinstance(annotation, griffe.ExprBinOp):
        return griffe.ExprBinOp(plain(annotation.left), annotation.operator, plain(annotation.right))
    return annotation
