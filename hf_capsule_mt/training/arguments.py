"""Training arguments of translation runs, beside those of Transformers."""

from dataclasses import dataclass, field

from transformers import Seq2SeqTrainingArguments


@dataclass
class CapsuleSeq2SeqTrainingArguments(Seq2SeqTrainingArguments):
    """[`Seq2SeqTrainingArguments`] and what [`CapsuleSeq2SeqTrainer`] adds. The papers' schedule is Transformers' own:
    `lr_scheduler_type="inverse_sqrt"` with `warmup_steps`.

    Args:
        max_tokens_per_batch (`int`, *optional*):
            Fill every batch up to this many tokens, source and target and their padding together, in place of
            `per_device_train_batch_size` pairs; see [`TokenBatchSampler`].
        auxiliary_warmup_steps (`int`, defaults to 0):
            Raise the auxiliary losses from 0 to their weights over the first steps. From scratch they drown the
            translation loss at the papers' weight of 1.
    """

    max_tokens_per_batch: int | None = field(
        default=None, metadata={"help": "Tokens of a batch, both sides with padding; replaces the number of pairs."}
    )
    auxiliary_warmup_steps: int = field(
        default=0, metadata={"help": "Steps over which the auxiliary losses rise from 0 to their weights."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        budget, warmup = self.max_tokens_per_batch, self.auxiliary_warmup_steps
        if budget is not None and (not isinstance(budget, int) or budget < 2):
            raise ValueError(f"max_tokens_per_batch={budget!r}: must be an integer of at least 2, or None")
        if not isinstance(warmup, int) or warmup < 0:
            raise ValueError(f"auxiliary_warmup_steps={warmup!r}: must be an integer of at least 0")
