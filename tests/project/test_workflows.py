"""The workflows run this project's commands, with few rights, by actions of known content."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.project.makefile import ROOT, targets

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

FOLDER = ROOT / ".github" / "workflows"
WORKFLOWS = sorted(FOLDER.glob("*.yml"))
REQUIREMENTS = sorted((ROOT / ".github" / "requirements").glob("*.txt"))
PINNED = re.compile(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+")
# Rights beyond reading, and the only jobs that have them.
WRITES = {
    ("release.yml", "attest"): {"id-token", "attestations"},
    ("release.yml", "publish"): {"id-token"},
    ("release.yml", "announce"): {"contents"},
}
# Values that nobody outside of the project chooses.
TRUSTED = re.compile(r"(matrix\.\w+|github\.(token|repository|ref|ref_name|workflow)|github\.event_name == '\w+')")


def read(path: Path) -> dict[str, Any]:
    """A workflow; YAML 1.1 reads the key ``on`` as true."""
    fields = dict(yaml.safe_load(path.read_text(encoding="utf-8")))
    fields["on"] = fields.pop(True)
    return fields


def jobs() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path in WORKFLOWS:
        for name, job in read(path)["jobs"].items():
            yield path.name, name, job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for workflow, name, job in jobs():
        for step in job.get("steps", ()):
            yield f"{workflow}: {name}", step


def test_there_is_a_workflow_for_each_purpose() -> None:
    names = {path.stem for path in WORKFLOWS}
    assert names == {"check", "test", "docs", "wheels", "release", "scheduled"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_action_is_pinned_by_its_digest(path: Path) -> None:
    lines = re.findall(r"uses:\s*(.*)", path.read_text(encoding="utf-8"))
    assert lines
    others = [line for line in lines if not PINNED.fullmatch(line)]
    assert [line.split(" ")[0] for line in others if not line.startswith("./.github/workflows/")] == []


def test_one_action_has_one_version() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    uses = {line.partition("@")[0]: set[str]() for line in re.findall(r"uses: (\S+@.*)", text)}
    for line in re.findall(r"uses: (\S+@.*)", text):
        uses[line.partition("@")[0]].add(line.partition("@")[2])
    assert {name: versions for name, versions in uses.items() if len(versions) > 1} == {}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_has_no_rights_and_its_jobs_few(path: Path) -> None:
    workflow = read(path)
    assert workflow["permissions"] == {}
    assert "pull_request_target" not in workflow["on"]
    assert "workflow_run" not in workflow["on"]
    for name, job in workflow["jobs"].items():
        rights = job["permissions"]
        writes = {right for right, level in rights.items() if level != "read"}
        assert writes == WRITES.get((path.name, name), set()), name


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_ends_and_does_not_run_twice(path: Path) -> None:
    workflow = read(path)
    assert workflow["concurrency"]["group"]
    assert "cancel-in-progress" in workflow["concurrency"]
    for name, job in workflow["jobs"].items():
        assert "uses" in job or 0 < job["timeout-minutes"] <= 180, name


def test_no_text_of_strangers_becomes_a_command() -> None:
    assert [where for where, step in steps() if "${{" in step.get("run", "")] == []
    for path in WORKFLOWS:
        for expression in re.findall(r"\$\{\{\s*(.*?)\s*\}\}", path.read_text(encoding="utf-8")):
            assert TRUSTED.fullmatch(expression), f"{path.name}: {expression}"


def test_a_checkout_leaves_no_token_for_later_steps() -> None:
    for where, step in steps():
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False, where


def test_secrets_are_not_used() -> None:
    assert [path.name for path in WORKFLOWS if "secrets." in path.read_text(encoding="utf-8")] == []


def test_every_make_target_exists() -> None:
    used = {target for _, step in steps() for target in re.findall(r"\bmake ([\w-]+)", step.get("run", ""))}
    assert {"check", "test", "drills", "golden", "docs", "compat", "fuzz"} <= used
    assert used - {*targets()} == set()


def test_the_matrix_has_every_python_and_system() -> None:
    matrix = read(FOLDER / "test.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {system.partition("-")[0] for system in matrix["system"]} == {"ubuntu", "macos"}
    wheels = read(FOLDER / "wheels.yml")["jobs"]["wheels"]["strategy"]["matrix"]["system"]
    assert len(wheels) == 4
    assert {*matrix["system"]} <= {*wheels}


def test_what_is_published_comes_from_a_protected_environment() -> None:
    workflow = read(FOLDER / "release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    assert workflow["jobs"]["publish"]["environment"]["name"] == "pypi"
    needed, waiting = set[str](), ["publish"]
    while waiting:
        needs = workflow["jobs"][waiting.pop()].get("needs", [])
        waiting += [needs] if isinstance(needs, str) else needs
        needed |= {*waiting}
    assert {"version", "test", "wheels", "source", "attest"} <= needed


def test_tools_are_installed_by_hash() -> None:
    installs = [step["run"] for _, step in steps() if re.search(r"pip install ", step.get("run", ""))]
    assert installs
    assert [line for line in installs if "--require-hashes -r .github/requirements/" not in line] == []
    for path in REQUIREMENTS:
        entries = re.sub(r"\\\n\s*", "", path.read_text(encoding="utf-8")).splitlines()
        assert [entry for entry in entries if not re.match(r"[\w.-]+==\S+.* --hash=sha256:[0-9a-f]{64}", entry)] == []
        wanted = path.with_suffix(".in").read_text(encoding="utf-8").splitlines()
        names = {entry.partition("==")[0] for entry in entries}
        assert {line for line in wanted if not line.startswith("#")} <= names


def test_dependabot_knows_every_place_with_versions() -> None:
    updates = yaml.safe_load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))["updates"]
    places = {(update["package-ecosystem"], update["directory"]) for update in updates}
    assert places == {("github-actions", "/"), ("pip", "/"), ("pip", "/.github/requirements")}


def test_zizmor_has_no_complaint() -> None:
    zizmor = shutil.which("zizmor", path=str(Path(sys.executable).parent))
    if zizmor is None:
        pytest.skip("zizmor is not installed")
    done = subprocess.run(
        [zizmor, "--offline", "--no-progress", str(ROOT / ".github")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
