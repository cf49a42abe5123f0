from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

import shoal
from shoal.processes import interpreters
from shoal.processes.interpreters import start_python


def test_the_package_is_found_where_this_process_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(interpreters._HOME)
    assert Path(shoal.__file__).resolve() == home / "shoal" / "__init__.py"
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "told.py").write_text("import os; print(__file__, os.environ['OMP_NUM_THREADS'])")
    (tmp_path / "told.py").write_text("raise SystemExit('the module of a user')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(interpreters, "_HOME", str(tmp_path / "ours"))
    for before in ("", "elsewhere"):
        monkeypatch.setenv("PYTHONPATH", before)
        child = start_python("told", stdout=subprocess.PIPE)
        said, _ = child.communicate(timeout=60)
        assert said.decode().split() == [str(tmp_path / "ours" / "told.py"), "1"]
        assert child.returncode == 0
    assert os.environ["PYTHONPATH"] == "elsewhere"
