"""Text of somebody else's, the name of a corpus for one, in a card of Markdown: it shows as it is and does nothing."""

import re
from typing import Any

# What begins emphasis, code, links, images, HTML, tables, formulas and entities; an underscore only beside a word.
MARKS = re.compile(r"[\\`*\[\]<>|~$&]|(?<!\w)_|_(?!\w)")
LINE_ENDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def escaped(value: Any) -> str:
    """`value` as plain text on one line, in a paragraph, a heading or a cell of a table."""
    return MARKS.sub(lambda mark: f"\\{mark[0]}", LINE_ENDS.sub(" ", str(value)))


def code_span(value: Any, in_table: bool = False) -> str:
    """`value` in letters of one width; between more backticks than it has in a row, since none can be escaped."""
    text = LINE_ENDS.sub(" ", str(value))
    if in_table:
        text = text.replace("|", "\\|")  # a bar ends the cell even in code
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    if longest == 0 and text.strip():
        return f"`{text}`"
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"
