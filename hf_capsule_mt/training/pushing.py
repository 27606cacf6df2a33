"""Pushes to the Hub that tell nobody the token, nor the settings of this machine."""

import shutil
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi
from transformers import Seq2SeqTrainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, HubStrategy
from transformers.utils import PushInProgress

ARGUMENTS = "training_args.bin"  # a pickle of all arguments, paths and the token among them
MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors*", "pytorch_model*", "adapter_*")


class PushingTrainer(Seq2SeqTrainer):
    """[`Seq2SeqTrainer`] whose `training_args.bin` never holds the token of the Hub, and is never pushed."""

    args: Any
    push_in_progress: Any
    _pushes = False

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        token, self.args.hub_token = self.args.hub_token, None
        try:
            super()._save(output_dir, state_dict)
        finally:
            self.args.hub_token = token
        if self.args.push_to_hub or self._pushes:
            Path(output_dir or self.args.output_dir, ARGUMENTS).unlink(missing_ok=True)

    def push_to_hub(self, *args: Any, **kwargs: Any) -> Any:
        self._pushes = True
        try:
            return super().push_to_hub(*args, **kwargs)
        finally:
            self._pushes = False

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """As in Transformers, which would pickle the arguments into the folder that it pushes."""
        args, jobs = self.args, self.push_in_progress
        busy = jobs is not None and not jobs.is_done()
        if not self.is_world_process_zero() or args.hub_strategy == HubStrategy.END:
            return
        if busy and not args.hub_always_push:
            return
        self.callback_handler.on_push_begin(args, self.state, self.control)
        checkpoint, output = Path(checkpoint_folder), Path(args.output_dir)
        for path in [path for pattern in MODEL_FILES for path in checkpoint.glob(pattern)]:
            shutil.copy(path, output / path.name)
        if self.processing_class is not None:
            self.processing_class.save_pretrained(output)
        message = f"Training in progress, step {self.state.global_step}"
        pushed = [self._push_folder(output, message, ["_*", f"{PREFIX_CHECKPOINT_DIR}-*"])]
        if args.hub_strategy in (HubStrategy.CHECKPOINT, HubStrategy.ALL_CHECKPOINTS):
            place = "last-checkpoint" if args.hub_strategy == HubStrategy.CHECKPOINT else checkpoint.name
            pushed.append(self._push_folder(checkpoint, f"{message}, checkpoint", [], place))
        waits_for: Any = [*jobs.jobs, *pushed] if busy else pushed
        self.push_in_progress = PushInProgress(waits_for)

    def _push_folder(self, folder: Path, message: str, ignored: list[str], place: str | None = None) -> Any:
        """Without waiting for it."""
        return HfApi().upload_folder(
            repo_id=str(self.hub_model_id),
            folder_path=folder,
            path_in_repo=place,
            commit_message=message,
            token=self.args.hub_token,
            ignore_patterns=[*ignored, ARGUMENTS],
            revision=self.args.hub_revision,
            run_as_future=True,
        )
