"""The parts of a report's page as plain data for JSON. `page.js` draws a block by its `type`."""

from collections.abc import Sequence
from typing import Any

WRONG_ORDER = "wrong order"
WRONG_ORDER_MEANS = (
    f"For contrast, “{WRONG_ORDER}” gives each source the translation of the next sentence of the test set: it is "
    "what fluent text that ignores its source scores."
)


def section(identifier: str, title: str, blocks: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    """A section of the page. Blocks that are None are left out."""
    return {"id": identifier, "title": title, "blocks": [block for block in blocks if block is not None]}


def text(content: str) -> dict[str, Any]:
    return {"type": "text", "text": content}


def table(title: str, header: Sequence[str], rows: Sequence[Sequence[Any]], caption: str) -> dict[str, Any]:
    """A table. Numbers are rounded to four digits, None is a dash."""
    return {"type": "table", "title": title, "header": list(header), "rows": [list(row) for row in rows]} | {
        "caption": caption
    }


def lines(
    title: str,
    x_label: str,
    y_label: str,
    series: Sequence[dict[str, Any]],
    caption: str,
    x_names: Sequence[str] | None = None,
) -> dict[str, Any]:
    """A line chart. With `x_names` the x of a point is an index into them."""
    return {
        "type": "lines",
        "title": title,
        "x_label": x_label,
        "y_label": y_label,
        "series": [one for one in series if one["points"]],
        "caption": caption,
    } | ({"x_names": list(x_names)} if x_names is not None else {})


def series(name: str, points: Sequence[dict[str, Any]], contrast: bool = False) -> dict[str, Any]:
    """A line of a chart. The contrasting case is grey, dotted and marked with crosses."""
    return {"name": name, "points": list(points)} | ({"contrast": True} if contrast else {})


def point(x: float, y: float, low: float | None = None, high: float | None = None, **more: Any) -> dict[str, Any]:
    """A point, with an interval if there is one. `filter` chooses the sentences that a click shows."""
    bounds = {} if low is None or high is None else {"low": round(low, 4), "high": round(high, 4)}
    return {"x": x, "y": round(y, 4)} | bounds | more


def next_sentences(translations: Sequence[str]) -> list[str]:
    """The translations in the wrong order: each source gets that of the next one, the last source the first."""
    return [*translations[1:], *translations[:1]]
