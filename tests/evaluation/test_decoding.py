import pytest
import torch
from transformers import set_seed

from hf_capsule_mt import CapsuleAggregatedMarianForConditionalGeneration, translate
from hf_capsule_mt.training import small_config, small_task


@pytest.fixture(scope="module")
def model_and_task():
    task = small_task(train_size=200, test_size=12, vocab_size=400, seed=1, max_words=12)
    set_seed(1)
    options = {"d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "max_position_embeddings": 60}
    config = small_config(task.tokenizer, **options, encoder_ffn_dim=48, decoder_ffn_dim=48)
    return CapsuleAggregatedMarianForConditionalGeneration(config), task


def test_order_is_kept_and_batches_do_not_matter(model_and_task):
    model, task = model_and_task
    together = translate(model, task.tokenizer, task.test_sources, max_new_tokens=6)
    alone = [translate(model, task.tokenizer, [text], max_new_tokens=6)[0] for text in task.test_sources]
    small = translate(model, task.tokenizer, task.test_sources, batch_size=5, max_new_tokens=6)
    assert together == alone == small
    assert model.training, "translate must leave the mode of the model as it was"


def test_no_sentences(model_and_task):
    model, task = model_and_task
    assert translate(model, task.tokenizer, []) == []


def test_an_empty_sentence_is_an_error(model_and_task):
    model, task = model_and_task
    with pytest.raises(ValueError, match="sentence 1 is empty"):
        translate(model, task.tokenizer, ["The dog sleeps.", "  \n"])


def test_a_long_sentence_is_truncated_with_a_warning(model_and_task):
    model, task = model_and_task
    long = "The dog sees the old river. " * 40
    with pytest.warns(UserWarning, match="sentence 1 has .* truncated to the model's 60"):
        output = translate(model, task.tokenizer, ["The dog sleeps.", long], max_new_tokens=4)
    assert len(output) == 2 and torch.is_grad_enabled()
