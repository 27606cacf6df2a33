"""Which columns hold the pair, and whether the first row of a table is a header that names them.

Columns are known by their languages (`en`, `English`), by what they are (`source`, `tgt`), or by the names that the
caller gives. Words such as `text` and `sentence` may stand beside (`text_en`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

_SOURCE_WORDS = frozenset({"source", "src", "original", "input", "sentence1", "text1"})
_TARGET_WORDS = frozenset({"target", "tgt", "trg", "translation", "translated", "output", "sentence2", "text2"})
_WORDS_BESIDE = frozenset({"text", "texts", "sentence", "sentences", "segment", "segments", "string", "language"})
# What languages are called beside their code of two letters.
_LANGUAGE_NAMES = {
    "ar": "ara arabic",
    "bg": "bul bulgarian",
    "cs": "ces cze czech",
    "da": "dan danish",
    "de": "deu ger german deutsch",
    "el": "ell gre greek",
    "en": "eng english englisch",
    "es": "spa spanish español",
    "et": "est estonian",
    "fi": "fin finnish",
    "fr": "fra fre french français",
    "hi": "hin hindi",
    "hu": "hun hungarian",
    "it": "ita italian italiano",
    "ja": "jpn japanese",
    "ko": "kor korean",
    "lt": "lit lithuanian",
    "lv": "lav latvian",
    "nl": "nld dut dutch nederlands",
    "no": "nor norwegian",
    "pl": "pol polish polski",
    "pt": "por portuguese português",
    "ro": "ron rum romanian",
    "ru": "rus russian",
    "sk": "slk slo slovak",
    "sl": "slv slovenian slovene",
    "sv": "swe swedish",
    "tr": "tur turkish",
    "uk": "ukr ukrainian",
    "vi": "vie vietnamese",
    "zh": "zho chi chinese",
}
_NAMES = {code: frozenset({code, *names.split()}) for code, names in _LANGUAGE_NAMES.items()}
_HEADER_WORDS = _SOURCE_WORDS.union(_TARGET_WORDS, *_NAMES.values())
# `en_US`, `zh-Hant-TW`, `deu_Latn`: a language with its script or country. Hyphens join words of sentences too, so
# that the letters must be large and small there as the standard has them.
_VARIANT = re.compile(
    r"([a-z]{2,3})(?:-[A-Z][a-z]{3})?(?:-(?:[A-Z]{2}|[0-9]{3}))?|"
    r"([a-zA-Z]{2,3})(?:_[a-zA-Z]{4})?(?:_(?:[a-zA-Z]{2}|[0-9]{3}))?"
)


class PairColumns(NamedTuple):
    """Where the pair is in a row.

    The languages are keys of `translation`, or names of columns. `columns` are the names that the caller gave instead,
    and `header` is what the caller says of the first row of a TSV or CSV file.
    """

    languages: tuple[str, str]
    columns: tuple[str, str] | None = None
    header: bool | None = None

    @classmethod
    def checked(
        cls,
        source: str,
        target: str,
        source_column: str | None,
        target_column: str | None,
        header: bool | None = None,
        name: str = "load_corpus",
    ) -> PairColumns:
        """The arguments of the function of this name; a ValueError that says what is wrong with them."""
        columns = None
        if not all(isinstance(one, str) and one for one in (source, target)) or source == target:
            raise ValueError(f"{name}: source={source!r} and target={target!r} must be two different languages")
        if header not in (None, True, False):
            raise ValueError(f"{name}: header={header!r} must be True, False, or None to look at the first row")
        if source_column is not None or target_column is not None:
            if (
                not (isinstance(source_column, str) and isinstance(target_column, str))
                or source_column == target_column
            ):
                raise ValueError(
                    f"{name}: source_column={source_column!r} and target_column={target_column!r} must be two "
                    "different columns; give both, or neither"
                )
            columns = (source_column, target_column)
        return cls((source, target), columns, header)

    def find(self, names: Iterable[str]) -> tuple[int, int] | None:
        """The places of source and target among the columns of these names; None unless each is there once."""
        names = [name.strip() for name in names]
        if self.columns is not None:
            places = [[place for place, name in enumerate(names) if name == column] for column in self.columns]
        else:
            places = [
                [place for place, name in enumerate(names) if _names_side(name, language, words)]
                or [place for place, name in enumerate(names) if _names_variant(name, language)]
                for language, words in zip(self.languages, (_SOURCE_WORDS, _TARGET_WORDS), strict=True)
            ]
        if any(len(found) != 1 for found in places) or places[0] == places[1]:
            return None
        return places[0][0], places[1][0]

    def __str__(self) -> str:
        """The two columns as an error names them."""
        return " and ".join(self.columns or self.languages)


@dataclass(frozen=True)
class TableLayout:
    """The places of source and target in a row, how many fields a row has, and whether the first row is a header."""

    columns: tuple[int, int] = (0, 1)
    width: int = 2
    has_header: bool = False


def table_layout(
    first_row: list[str] | None, wanted: PairColumns, where: str, needs_header: bool = False
) -> TableLayout:
    """The layout of a table with this first row, None for an empty table.

    Where the caller does not say whether the first row is a header, the row itself has to tell. A table that
    `needs_header` is not read without one unless the caller asks for that.
    """
    if wanted.header is False and wanted.columns is not None:
        raise ValueError(
            f"load_corpus: header=False, but source_column={wanted.columns[0]!r} and "
            f"target_column={wanted.columns[1]!r} name columns of a header; leave one of them out"
        )
    if first_row is None or wanted.header is False:
        return TableLayout()
    columns = wanted.find(first_row)
    if columns is not None:
        return TableLayout(columns, len(first_row), has_header=True)
    named = wanted.columns is not None
    if wanted.header and not named and len(first_row) == 2:
        return TableLayout(has_header=True)
    if not (wanted.header or named or needs_header or all(map(_is_header_word, first_row))):
        return TableLayout()
    fix = "" if wanted.header or named else ", or pass header=False if this row is a pair"
    raise ValueError(
        f"load_corpus: {where} names the columns {quoted(first_row)} and must name {wanted} once each; "
        f"name two of them with source_column and target_column{fix}"
    )


def column_problem(where: str, columns: list[str], wanted: PairColumns) -> str:
    """What an error says where a data set has columns, but not those of the pair."""
    has = f"{where} has the columns {columns}"
    if wanted.columns is not None:
        return f"{has}; must have {wanted}, which source_column and target_column name"
    return f"{has}; must have 'translation', or {wanted}; name two of them with source_column and target_column"


def _names_side(name: str, language: str, side_words: frozenset[str]) -> bool:
    """Whether a header's cell names the side of this language."""
    if name.casefold() == language.casefold():
        return True
    code, *variant = _words(language) or [""]  # `eng_Latn`: the language, then its script or country
    own = next((names for names in _NAMES.values() if code in names), frozenset({code})) | side_words
    words = _words(name)
    return any(word in own for word in words) and own.union(_WORDS_BESIDE, variant).issuperset(words)


def _names_variant(name: str, language: str) -> bool:
    """Whether a header's cell names this language with a script or country that the caller has left open."""
    code, asked = _code_of_variant(name), language.casefold()
    return code is not None and (code == asked or any({code, asked} <= names for names in _NAMES.values()))


def _code_of_variant(name: str) -> str | None:
    """The language of `en_US`; None of other names."""
    match = _VARIANT.fullmatch(name.strip())
    return (match[1] or match[2]).casefold() if match else None


def _is_header_word(name: str) -> bool:
    if _code_of_variant(name) in _HEADER_WORDS:
        return True
    words = set(_words(name))
    return bool(words & _HEADER_WORDS) and words <= _HEADER_WORDS | _WORDS_BESIDE


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.casefold())


def quoted(names: Iterable[str]) -> str:
    """Names as an error lists them, not all of very many."""
    text = ", ".join(map(repr, names))
    return text if len(text) <= 200 else f"{text[:200]} …"
