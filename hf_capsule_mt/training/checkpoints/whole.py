"""Checkpoints that are whole or not there.

A checkpoint is written into a folder of its own beside the others, flushed to disk, and only then takes its name: one
that a dying process or a full disk cut short is never seen as a checkpoint, and those before it stay as they are.
"""

import shutil
from pathlib import Path
from typing import Any

from torch import nn
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from hf_capsule_mt.modeling.saving.weight_digests import weight_files, write_digest
from hf_capsule_mt.training.checkpoints.files import (
    REPLACED,
    STATE,
    UNFINISHED,
    disk_is_full,
    flush,
    last_checkpoint,
    was_due,
)
from hf_capsule_mt.training.checkpoints.record import write_file_record
from hf_capsule_mt.training.pushing import PushingTrainer


class WholeCheckpointTrainer(PushingTrainer):
    """[`PushingTrainer`] whose checkpoints appear whole or not at all. One for which the disk has no room is an
    `OSError` that names the last good one."""

    args: Any
    _stopgap: Path | None = None
    _writing_to: Path | None = None

    def save_beside(self, folder: Path) -> None:
        """Write what else a checkpoint needs; every process calls this."""

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        """As in Transformers, with the digest that models of this package have in the weights of every other too."""
        super()._save(output_dir, state_dict)
        for path in weight_files(Path(output_dir or self.args.output_dir)):
            write_digest(path)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._writing_to is None else str(self._writing_to)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._writing_to is None:  # else it is pushed when it has its name
            super()._push_from_checkpoint(checkpoint_folder)

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(super()._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        part = folder / UNFINISHED
        if self.is_local_process_zero():
            shutil.rmtree(part, ignore_errors=True)
        self.accelerator.wait_for_everyone()
        self._writing_to = part
        try:
            super()._save_checkpoint(model, trial)
            (part / name).mkdir(parents=True, exist_ok=True)  # a process that had nothing to write
            self.save_beside(part / name)
            self._name_best(folder, part / name)
            self.accelerator.wait_for_everyone()  # every process has written its files
            if self.is_local_process_zero():
                write_file_record(part / name, self.state.global_step)
                flush(part / name)
        except Exception as error:
            if not disk_is_full(error):
                raise
            self._say_what_is_left(folder, name, error)
        finally:
            self._writing_to = None
        self._put_in_place(part, folder, name)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(folder / name))
        if self.args.should_save:
            self._remove_stopgap(folder / name)
            rotate_checkpoints(
                output_dir=str(folder),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
                use_mtime=True,
            )

    def _name_best(self, folder: Path, written: Path) -> None:
        """The best checkpoint is called by the name it will have."""
        best = folder / f"{PREFIX_CHECKPOINT_DIR}-{self.state.best_global_step}"
        if self.state.best_global_step and (best.name == written.name or (best.is_dir() and was_due(best))):
            self.state.best_model_checkpoint = str(best)
            if self.args.should_save:
                self.state.save_to_json(str(written / STATE))

    def _put_in_place(self, part: Path, folder: Path, name: str) -> None:
        self.accelerator.wait_for_everyone()  # and they are on the disk
        for main in (self.is_world_process_zero(), self.is_local_process_zero()):  # nodes may have disks of their own
            if main and (part / name).is_dir():
                if (folder / name).exists():  # of an earlier run
                    (folder / name).rename(part / REPLACED)
                (part / name).rename(folder / name)
                shutil.rmtree(part, ignore_errors=True)
                flush(folder, files=False)
            self.accelerator.wait_for_everyone()

    def _remove_stopgap(self, written: Path) -> None:
        """The checkpoint of SIGTERM that this run found by itself and went on from, now that there is a later one:
        else it would push a due one out of `save_total_limit`, and the run would not end as if nothing had happened.
        One that the user named is kept."""
        start = self._stopgap
        if start is None or not start.is_dir() or start.resolve().parent != written.resolve().parent:
            return
        if start.name != written.name and not was_due(start):
            shutil.rmtree(start, ignore_errors=True)

    def _say_what_is_left(self, folder: Path, name: str, error: Exception) -> None:
        shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
        last = last_checkpoint(folder)
        free = shutil.disk_usage(folder).free if folder.is_dir() else 0
        raise OSError(
            f"{folder / name} could not be written ({error}; {free / 1e9:.2f} GB are free): make room and train with "
            + (f"resume_from_checkpoint={str(last)!r}, which is whole" if last else "another try, nothing was saved")
        ) from error
