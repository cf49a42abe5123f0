"""A pass of a loader that accelerate was given: it is told where the loader ends, and batches go to its device."""

from __future__ import annotations

import logging
import sys
from typing import Any, NamedTuple, Self

from shoal.order.partition import Partition
from shoal.stream.iterating.iterator import Iteration
from shoal.stream.refilling.steps_of_pass import StepsOfPass

_log = logging.getLogger("shoal")
_NO_EFFECT = {
    "split_batches": "batch(global_batch_size=n) gives the size of a batch over all ranks",
    "dispatch_batches": "each rank reads its own part",
}


class Accelerated(NamedTuple):
    """The wish of ``Accelerator.prepare``: the device for the batches of a loader; None leaves them where they are."""

    device: Any

    @classmethod
    def by_caller(cls, depth: int = 2) -> Accelerated | None:
        """Return the wish of the ``Accelerator`` whose method called; None if something else called."""
        frame = sys._getframe(depth)  # noqa: SLF001  # accelerate tells a prepared loader nothing
        if frame.f_globals.get("__name__") != "accelerate.accelerator":
            return None
        accelerator: Any = frame.f_locals["self"]
        for name, hint in _NO_EFFECT.items():
            if getattr(accelerator, name, None):
                _log.warning("%s=True of accelerate has no effect on shoal.torch.DataLoader: %s", name, hint)
        is_placed = frame.f_locals.get("device_placement")
        is_placed = accelerator.device_placement if is_placed is None else is_placed
        return cls(accelerator.device if is_placed else None)

    def passed(self, batches: Iteration | StepsOfPass, partition: Partition) -> AcceleratedPass:
        """Return a pass over these batches."""
        return AcceleratedPass(batches, self.device, has_repeats=partition.remainder == "pad")


class PreparedMark:
    """The attribute by which accelerate knows a loader that it has prepared: always true.

    ``Accelerator.prepare`` reads it, leaves the loader as it is, and sets it. `Accelerated` notes who read it.
    """

    def __get__(self, loader: Any, owner: type | None = None) -> bool:
        if loader is not None:
            loader.accelerated = Accelerated.by_caller() or loader.accelerated
        return True

    def __set__(self, loader: Any, value: Any) -> None:
        pass


class AcceleratedPass:
    """The batches of a pass, which is the active loader of accelerate's ``GradientState`` from the first to the end.

    So ``accelerator.accumulate`` steps at the end of an epoch, as with torch's loader. ``remainder`` is what
    ``gather_for_metrics`` keeps of the last batch: everything (0), or "unknown" (-1) if it has repeats.
    """

    def __init__(self, batches: Iteration | StepsOfPass, device: Any, *, has_repeats: bool) -> None:
        from accelerate.state import GradientState  # noqa: PLC0415  # it has been imported by the caller of prepare()
        from accelerate.utils import send_to_device  # noqa: PLC0415

        self._batches, self._device, self._send = batches, device, send_to_device
        self._state: Any = GradientState()
        self._is_active = self.end_of_dataloader = False
        self.remainder = -1 if has_repeats else 0

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self._is_active:
            self._is_active = True
            self._state._add_dataloader(self)  # noqa: SLF001  # as a loader of accelerate does
        try:
            batch = next(self._batches)
        except BaseException:
            self._leave()
            raise
        self.end_of_dataloader = self._batches.is_at_end
        return batch if self._device is None else self._send(batch, self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batches, name)  # state_dict(), stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop reading and yielding."""
        self._leave()
        self._batches.close()

    def _leave(self) -> None:
        if self._is_active:
            self._is_active = False
            self._state._remove_dataloader(self)  # noqa: SLF001
