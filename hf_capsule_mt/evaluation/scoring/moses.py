"""Text as papers score it: optionally lower-cased, with Moses' normal punctuation, split by Moses' tokenizer.

sacremoses, the Python version of both Moses programs, is the extra `moses` of this package.
"""

from collections.abc import Callable


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """A function that normalises the punctuation of a line and puts a space between its tokens.

    Nothing is escaped: `&` stays `&`. Lower-case the text first if it is to be lower-cased. Multi30k's own files were
    made in this order, and it matters: German "Bart." at the end of a line is an abbreviation, "bart." is not.
    """
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise ValueError(
            "tokenizer='moses' needs sacremoses: pip install hf_capsule_mt[moses]; or pass text that is already "
            "tokenised, with tokenizer='none'"
        ) from error
    normalizer, tokenizer = MosesPunctNormalizer(lang=language), MosesTokenizer(lang=language)

    def tokenized(text: str) -> str:
        return str(tokenizer.tokenize(normalizer.normalize(text), escape=False, return_str=True))

    return tokenized
