"""Escapes foreign text, such as the name of a corpus, for a Markdown card. It is shown literally."""

import re
from typing import Any

# Characters that begin emphasis, code, links, images, HTML, tables, formulas and entities. An underscore inside a word
# begins none.
MARKS = re.compile(r"[\\`*\[\]<>|~$&]|(?<!\w)_|_(?!\w)")
LINE_ENDS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def escaped(value: Any) -> str:
    """`value` as plain text on one line, for a paragraph, a heading or a table cell."""
    return MARKS.sub(lambda mark: f"\\{mark[0]}", LINE_ENDS.sub(" ", str(value)))


def code_span(value: Any, in_table: bool = False) -> str:
    """`value` as a code span. Backticks cannot be escaped in it, so it stands between a longer run of backticks."""
    text = LINE_ENDS.sub(" ", str(value))
    if in_table:
        text = text.replace("|", "\\|")  # a bar ends the cell even in code
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    if longest == 0 and text.strip():
        return f"`{text}`"
    fence = "`" * (longest + 1)
    return f"{fence} {text} {fence}"
