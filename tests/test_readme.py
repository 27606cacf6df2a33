"""Snippets of the README that no other test runs."""

import re
from pathlib import Path

from hf_capsule_mt import CapsuleSeq2SeqTrainingArguments
from hf_capsule_mt.recipes.recipe import parse_recipe

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def snippet(language: str, words: str) -> str:
    """The one snippet that holds `words`."""
    (found,) = [text for text in re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL) if words in text]
    return found


def test_training_arguments() -> None:
    names: dict = {}
    exec(snippet("python", "max_tokens_per_batch=8_000"), names)
    arguments = names["arguments"]
    assert type(arguments) is CapsuleSeq2SeqTrainingArguments and arguments.load_best_model_at_end


def test_a_recipe_for_a_marian_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text(snippet("yaml", "new_parameter_learning_rate"))
    recipe = parse_recipe([str(file)])
    assert recipe.config == {"layer_aggregation": "em_routing", "aggregation_output": "gated"}
    assert recipe.model.new_parameter_learning_rate == 5e-4 and recipe.training.learning_rate == 2e-5


def test_every_file_that_it_links_to_is_there() -> None:
    for page in [ROOT / "README.md", *(ROOT / "model_cards").glob("*.md")]:
        links = re.findall(r"\]\(([^)#:]+)\)", page.read_text(encoding="utf-8"))
        assert links, page
        assert not [link for link in links if not (page.parent / link).exists()], page
