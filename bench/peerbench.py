"""Runs a benchmark of streaming loaders side by side with shoal as one more row.

``python bench/peerbench.py KIT [options of KIT/run.py]`` copies the kit into a temporary directory, puts
``bench/peerbench_shoal.py`` among its adapters, and runs it; the environments of the peers are those below
``PEERBENCH_HOME``, made by the kit's ``setup_venvs.sh``, and shoal's is made there if it is missing. Rows of shoal are
``shoal_mds``, ``shoal_parquet`` and ``shoal_tar``, which read what the peers of those formats wrote, over http where
the kit has its server (``--s3``); ``shoal_mds_s3`` by S3, ``shoal_mds_1MiB`` and ``shoal_mds_s3_1MiB`` in requests of
1 MiB; and so the others.

``--in-batches`` measures batches of 64 in one process for all rows, which the kit only does with worker processes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("numpy", "psutil", "pyarrow", "obstore")
FORMATS = ("mds", "parquet", "tar")
HOW = ("", "+s3", "+1MiB", "+s3+1MiB")
ROWS = {f"shoal_{name}{how.replace('+', '_')}": f"{name}{how}" for name in FORMATS for how in HOW}


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    kit, options = Path(sys.argv[1]), sys.argv[2:]
    home = Path(os.environ.get("PEERBENCH_HOME") or Path.home() / ".cache" / "peerbench")
    make_environment(home / "venvs")
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory, "kit")
        shutil.copytree(kit, copy)
        copy.chmod(0o755)
        for path in copy.rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)
        shutil.copy(ROOT / "bench" / "peerbench_shoal.py", copy / "adapters" / "shoal_.py")
        registry = copy / "adapters" / "__init__.py"
        lines = [f'PEERS["{name}"] = ("shoal_", "{variant}")' for name, variant in ROWS.items()]
        registry.write_text("\n".join([registry.read_text(), *lines, 'VENVS["shoal_"] = "shoal"', ""]))
        if "--in-batches" in options:
            options.remove("--in-batches")
            run = copy / "run.py"
            text = run.read_text().replace("workers=a.workers if batched else 0", "workers=a.workers")
            run.write_text(text)
            options += ["--workers", "0"]
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
        return subprocess.run([sys.executable, str(copy / "run.py"), *options], env=environment, check=False).returncode


def make_environment(venvs: Path) -> None:
    """One for shoal, with the torch of the base environment hard-linked as the kit does it."""
    own = venvs / "shoal"
    if (own / ".ok").exists():
        return
    subprocess.run([sys.executable, "-m", "venv", own], check=True)
    libraries = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    places = [
        subprocess.run([venv / "bin" / "python", "-c", libraries], capture_output=True, text=True, check=True)
        for venv in (venvs / "base", own)
    ]
    base, here = (place.stdout.strip() for place in places)
    subprocess.run(["cp", "-al", f"{base}/.", here], check=False, stderr=subprocess.DEVNULL)
    subprocess.run([own / "bin" / "python", "-m", "pip", "install", "-q", *PACKAGES], check=True)
    (own / ".ok").touch()


if __name__ == "__main__":
    sys.exit(main())
