"""The rules that the configurations of the recurrent families share."""

from hf_capsule_mt.configuration.config_checks import (
    Values,
    check_flag,
    check_integer,
    check_number,
    check_special_tokens,
    is_integer,
    problem,
)

FLAGS = ("scale_embedding", "share_encoder_decoder_embeddings", "tie_word_embeddings", "use_cache")


def recurrent_problems(
    values: Values, counts: tuple[str, ...], always_one: dict[str, str], probabilities: tuple[str, ...]
) -> list[str]:
    """Every rule that `values` breaks; `counts` must be at least 1, `always_one` says why a field can only be 1."""
    problems = [line for field in counts for line in check_integer(values, field, least=1)]
    for field, reason in always_one.items():
        if not is_integer(values[field]) or values[field] != 1:
            problems.append(problem(field, values[field], f"must be 1: {reason}", "leave it out"))
    if values["is_encoder_decoder"] is not True:
        rule = "must be True: this family translates"
        problems.append(problem("is_encoder_decoder", values["is_encoder_decoder"], rule, "leave it out"))
    for field in probabilities:
        rule = "must be a probability, at least 0 and below 1"
        problems += check_number(values, field, lambda value: 0 <= value < 1, rule, "use a number such as 0.1")
    for field in FLAGS:
        problems += check_flag(values, field)
    rule = "must be a float of at least 0"
    problems += check_number(
        values, "init_std", lambda value: isinstance(value, float) and value >= 0, rule, "use 0.02"
    )
    return problems + check_special_tokens(values)
