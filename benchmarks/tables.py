"""Figures as a table for people."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str | float | None]]) -> str:
    """Return aligned lines: floats to the right with two decimals, a dash for ``None``."""
    cells = [list(head), *([_text(value) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    to_the_right = [any(type(value) is float for value in column) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, to_the_right, strict=True)
        ).rstrip()
        for line in cells
    )


def verdict(*, kept: bool) -> str:
    """Return the word for a bar that was or was not kept."""
    return "ok" if kept else "MISSED"


def _text(value: str | float | None) -> str:
    if value is None:
        return "-"
    return value if isinstance(value, str) else f"{value:.2f}"
