"""Start cells of a framework: ``python start.py FRAMEWORK KIND DATA OUT NUM_WORKERS CELL...``.

Worker processes import the script that was started. So this one imports nothing at its top.
"""


def main() -> None:
    """Run the cells that the command line names; an error of one ends only this one."""
    import importlib
    import logging
    import sys
    import traceback
    import warnings
    from pathlib import Path

    import torch
    from tests.integration.frameworks.runs import Run, Warnings

    from shoal.errors import ShuffleWarning

    framework, kind, data, out, num_workers, *names = sys.argv[1:]
    cells = importlib.import_module(f"tests.integration.frameworks.{framework}_runs")
    warnings.simplefilter("ignore", ShuffleWarning)
    for name in names:
        run = Run(kind, data, Path(out), int(num_workers), name)
        handler = Warnings(run)
        logging.getLogger("shoal").addHandler(handler)
        torch.manual_seed(0)
        try:
            getattr(cells, name)(run)
        except Exception as error:  # noqa: BLE001  # the other cells are to be seen as well
            traceback.print_exc()
            run.failed(error)
        logging.getLogger("shoal").removeHandler(handler)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
