"""The data of a recipe: corpora, the tokenizer, and tokenised pairs."""

from pathlib import Path
from typing import Any, NamedTuple

import datasets
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from hf_capsule_mt.data import CleaningRules, Corpus, load_corpus, preprocess_pairs, train_tokenizer
from hf_capsule_mt.training.recipe import Recipe
from hf_capsule_mt.training.recipe_fields import DataRecipe, RecipeTrainingArguments

SPLITS = ("train", "validation", "test")


class Data(NamedTuple):
    """Corpora by split, their tokenised pairs, and the tokenizer."""

    corpora: dict[str, Corpus]
    pairs: dict[str, datasets.Dataset]
    tokenizer: PreTrainedTokenizerBase


def say(arguments: RecipeTrainingArguments, text: str) -> None:
    if arguments.process_index == 0:
        print(text, flush=True)


def load_data(recipe: Recipe, folder: Path, trained: bool) -> Data:
    """Corpora, tokenizer and tokenised pairs; a vocabulary is `trained` once, and then found in the output folder."""
    options = recipe.data
    corpora = {split: load_split(options, split) for split in SPLITS if getattr(options, split) is not None}
    for split, corpus in corpora.items():
        say(recipe.training, f"{split}: {corpus.name}\n{corpus.report}")
    named = options.tokenizer or recipe.model.init_from
    if named is None and not trained:
        texts = (text for row in corpora["train"].pairs["translation"] for text in row.values())
        train_tokenizer(texts, vocab_size=options.vocab_size).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder if named is None else named)
    pairs = {
        split: preprocess_pairs(
            corpus.pairs,
            tokenizer,
            options.source,
            options.target,
            max_source_length=options.max_source_length,
            max_target_length=options.max_target_length,
            num_proc=options.num_proc,
        )
        for split, corpus in corpora.items()
    }
    return Data(corpora, pairs, tokenizer)


def load_split(options: DataRecipe, split: str) -> Corpus:
    """One corpus; the recipe's rules are for training alone, of the others nothing is left out but blank pairs."""
    rules: Any = options.cleaning if split == "train" else None
    return load_corpus(
        getattr(options, split),
        options.source,
        options.target,
        split=split,
        cleaning=CleaningRules(**(rules or {})),
        num_proc=options.num_proc,
        cache_dir=options.cache_dir,
        repair=options.repair,
        seed=options.corpus_seed,
    )
