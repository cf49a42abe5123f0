"""torch in a worker process: seeds, threads and `get_worker_info` as in torch's own workers, once torch is imported.

A worker that makes arrays imports no torch, which takes seconds and 200 MB. This module imports torch only on request,
and prepares torch if a function of the user imports it at any time.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Preparation:
    """The preparation of a worker process: seeds of random numbers, torch's settings, and the function of the user."""

    seed: int
    num_workers: int
    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        """Prepare worker number ``worker``."""
        seed = self.seed + worker
        random.seed(seed)
        np.random.seed(np.random.SeedSequence([worker, self.seed]).generate_state(4))  # noqa: NPY002  # users may use it
        settings = _Settings(worker, self.num_workers, seed)
        if "torch" in sys.modules:
            settings.apply()
        else:
            sys.meta_path.insert(0, _AfterImport(settings))
        if self.init is not None:
            self.init(worker)


@dataclass(frozen=True)
class _Settings:
    worker: int
    num_workers: int
    seed: int

    def apply(self) -> None:
        """Set torch's number of threads, its seed, and the result of `torch.utils.data.get_worker_info`."""
        import torch  # noqa: PLC0415  # in a worker, only if needed
        from torch.utils.data._utils import worker as torch_worker  # noqa: PLC0415

        torch.set_num_threads(1)
        torch.manual_seed(self.seed)
        info: Any = torch_worker.WorkerInfo
        torch_worker._worker_info = info(id=self.worker, num_workers=self.num_workers, seed=self.seed, dataset=None)  # noqa: SLF001


class _AfterImport(MetaPathFinder):
    """Finder that applies the settings after the first import of torch."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of torch with a loader that applies the settings; None for other modules."""
        if fullname != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            run, apply = spec.loader.exec_module, self._settings.apply

            def run_and_apply(module: ModuleType) -> None:
                run(module)
                apply()

            spec.loader.exec_module = run_and_apply  # type: ignore[method-assign]
        return spec


def reduce_tensor(value: Any) -> Any:
    """Pickle a plain tensor in main memory as its array: a `reducer_override` for sent batches."""
    torch = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor:
        return NotImplemented
    if value.device.type != "cpu" or value.layout is not torch.strided or value.requires_grad:
        return NotImplemented
    if value.is_conj() or value.is_neg() or value.is_quantized:
        return NotImplemented
    tensor = value.contiguous()
    try:
        return tensor_of, (tensor.numpy(),)
    except TypeError:  # a type that numpy lacks, like bfloat16
        name, shape = str(value.dtype).removeprefix("torch."), tuple(value.shape)
        return tensor_of, (tensor.view(-1).view(torch.uint8).numpy(), name, shape)


def tensor_of(array: Any, name: str | None = None, shape: Sequence[int] = ()) -> Any:
    """Return the tensor over an array, or over the bytes of a tensor of a type that numpy lacks."""
    import torch  # noqa: PLC0415  # the receiver has it

    tensor = torch.from_numpy(array)
    return tensor if name is None else tensor.view(getattr(torch, name)).view(shape)
