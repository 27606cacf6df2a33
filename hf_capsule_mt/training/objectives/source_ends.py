"""The end tokens of sources. With two vocabularies they differ from the end tokens of translations."""

from typing import Any

from hf_capsule_mt.training.objectives.model_access import end_tokens, has_two_embeddings

SENTENCES_READ = 1000


def source_ends(dataset: Any, model: Any) -> list[int]:
    """The tokens that end the sources of the training set.

    A model names only the tokens that end translations. If sources have their own embedding, this function reads the
    last token of the first sources. If these tokens differ, sources have no end token.
    """
    if not has_two_embeddings(model) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        return end_tokens(model)
    rows = (dataset[place]["input_ids"] for place in range(min(SENTENCES_READ, len(dataset))))
    last = {int(row[-1]) for row in rows if len(row)}
    return [*last] if len(last) == 1 else []
