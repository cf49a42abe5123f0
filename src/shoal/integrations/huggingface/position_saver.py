"""A callback that saves the position of a loader in the checkpoints of a Trainer, for jobs that change their size."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from shoal.errors import UsageError
from shoal.storage.files.atomic_writes import read_lines, write_atomically

_NAME = "shoal.json"
_log = logging.getLogger("shoal")


def position_saver(loader: Any, resume_from: str | Path | None = None) -> Any:
    """Return a ``TrainerCallback`` that saves the position of a loader in each checkpoint, and resumes from it.

    A Trainer alone resumes at the step of the epoch, which is exact only with the same ranks and batches. With this
    callback, a job resumes at the exact sample, also with other ranks or another batch size.

    Parameters
    ----------
    loader
        The `shoal.torch.DataLoader` that ``get_train_dataloader`` of the Trainer returns.
    resume_from
        The checkpoint that ``Trainer.train`` resumes from; default: the checkpoint of its step in the output directory.

    Raises
    ------
    UsageError
        When training begins: the checkpoint has no position.

    Examples
    --------
    >>> from transformers import Trainer  # doctest: +SKIP
    >>> trainer = Trainer(model, args, callbacks=[shoal.huggingface.position_saver(loader)])  # doctest: +SKIP
    """
    from transformers import TrainerCallback  # noqa: PLC0415  # optional, and slow to import

    class PositionSaver(TrainerCallback):  # type: ignore[misc]  # untyped if transformers is not installed
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002  # the Trainer's call
            if state.is_world_process_zero:
                text = json.dumps(loader.state_dict())
                write_atomically(str(_checkpoint(args, state) / _NAME), [text.encode()])

        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            if not state.global_step:
                return
            path = (_checkpoint(args, state) if resume_from is None else Path(resume_from)) / _NAME
            lines = read_lines(str(path))
            if lines is None:
                msg = f"the Trainer resumes at step {state.global_step}, but there is no {path}"
                raise UsageError(msg, hint="position_saver(loader, resume_from=the directory of the checkpoint)")
            loader.load_state_dict(json.loads("".join(lines)))
            if not args.ignore_data_skip:
                args.ignore_data_skip = True
                _log.info("the loader resumes from %s, and the Trainer skips no batches", path)

    return PositionSaver()


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"
