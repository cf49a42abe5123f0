"""Mixture files: what they open, and the line that each error names."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest

import shoal
from shoal.errors import ShoalError, UsageError
from shoal.formats.metadata.marked_yaml import parse_yaml
from shoal.mixing import MixedDataset, PerBatch
from shoal.reading.mixture.mix_request import FOREVER, MixRequest
from shoal.testing import RangeServer

pytest.importorskip("yaml")

SIZES = {"web": 90, "code": 30, "books": 20}


@pytest.fixture(autouse=True)
def _data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOAL_CACHE_DIR", str(tmp_path / "cache"))
    for name, size in SIZES.items():
        (tmp_path / name).mkdir()
        rows = ({"id": i, "text": f"{name} {i}", "tokens": [0] * (1 + i % (4 if name == "web" else 9))}
                for i in range(size))  # fmt: skip
        (tmp_path / name / "a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def opened(tmp_path: Path, text: str, name: str = "blend.yaml", **arguments: Any) -> MixedDataset:
    (tmp_path / name).write_text(textwrap.dedent(text))
    ds = shoal.open(tmp_path / name, **arguments)
    assert isinstance(ds, MixedDataset)
    return ds


def near(counts: dict[str, int]) -> Any:
    return pytest.approx(counts, abs=4)  # off by a few inside blocks of 64, unless epochs have counts


def request_of(ds: MixedDataset) -> MixRequest:
    request = ds.stream.spec.request
    assert isinstance(request, MixRequest)
    return request


def sources(tmp_path: Path, **more: Any) -> dict[str, shoal.Dataset]:
    return {name: shoal.open(tmp_path / name / "a.jsonl", **more) for name in SIZES}


def test_a_file_is_the_mixture_that_python_makes(tmp_path: Path) -> None:
    ds = opened(tmp_path, """
        sources:
          web: {path: web, weight: 0.7}
          code: {path: [code/a.jsonl], weight: 1/5}
          books: {path: "books/*.jsonl", weight: .1}
        seed: 3
        choice: {batch: 8}
        epoch_size: 1_00
        max_repeats: 10
        shuffle: {window: 64KiB, seed: 5}
        changes:
          - {at: 40, weights: {web: 1, code: 1, books: 0}}
          - {at: 60, ramp: 30, weights: {web: 0, code: 1, books: 1}}
        """)  # fmt: skip
    weights = {"web": 0.7, "code": 0.2, "books": 0.1}
    same = shoal.mix(sources(tmp_path), weights=weights, seed=3, choice=PerBatch(8), epoch_size=100, max_repeats=10)
    same = same.reweight(at=40, weights={"web": 1, "code": 1, "books": 0})
    same = same.reweight(at=60, ramp=30, weights={"web": 0, "code": 1, "books": 1}).shuffle(seed=5, window="64KiB")
    assert ds.state_dict() == same.state_dict()
    assert ds.num_samples == 100
    assert [row["text"] for row in ds] == [row["text"] for row in same]


def test_names_that_yaml_1_1_takes_for_booleans_are_names(tmp_path: Path) -> None:
    ds = opened(tmp_path, "sources: {no: web, 010: code}\nends: all\n")
    assert ds.sources == ("no", "010")
    assert ds.num_samples == 120


@pytest.mark.parametrize(("share", "counts"), [
    ("repeat: 2", {"web": 180, "code": 60}),
    ("choose: 15", {"web": 15, "code": 15}),
])  # fmt: skip
def test_repeat_and_choose_give_an_epoch(tmp_path: Path, share: str, counts: dict[str, int]) -> None:
    text = f"sources:\n  web: {{path: web, {share}}}\n  code: {{path: code, {share}}}\n"
    ds = opened(tmp_path, text)
    assert ds.num_samples == sum(counts.values())
    assert ds.counts(ds.num_samples) == counts


def test_repeat_and_choose_may_stand_in_one_file(tmp_path: Path) -> None:
    ds = opened(tmp_path, "sources:\n  web: {path: web, repeat: 1/2}\n  code: {path: code, choose: 7}\n")
    assert ds.num_samples == 52
    assert ds.counts(52) == near({"web": 45, "code": 7})


def test_mixtures_nest_in_a_file_and_through_files(tmp_path: Path) -> None:
    (tmp_path / "more").mkdir()
    inner = "sources: {code: {path: ../code, weight: 2}, books: {path: ../books, weight: 1}}\n"
    (tmp_path / "more" / "inner.yaml").write_text(inner)
    through = opened(tmp_path, """
        sources:
          web: {path: web, weight: 0.5}
          rest: {path: more/inner.yaml, weight: 0.5}
        """)  # fmt: skip
    within = opened(tmp_path, """
        sources:
          web: {path: web, weight: 0.5}
          rest:
            weight: 0.5
            sources: {code: {path: code, weight: 2}, books: {path: books, weight: 1}}
        """)  # fmt: skip
    assert through.state_dict() == within.state_dict()
    assert {row["__source__"] for row in through} == {"web", "rest/code", "rest/books"}


def test_sources_have_columns_selections_and_orders_of_their_own(tmp_path: Path) -> None:
    ds = opened(tmp_path, """
        sources:
          web: {path: web, select: {id: [3, 5]}, index_columns: id, columns: text, shuffle: {order: full, seed: 1}}
          code: {path: code}
        ends: all
        """)  # fmt: skip
    rows = [row for row in ds if row["__source__"] == "web"]
    assert {row["text"] for row in rows} == {"web 3", "web 5"}
    assert {frozenset(row) for row in rows} == {frozenset({"text", "__source__"})}


def test_shares_of_tokens_hold_from_the_first_weights_through_changes(tmp_path: Path) -> None:
    ds = opened(tmp_path, """
        sources:
          web: &tokens {path: web, weight: 0.5, index_columns: "length=tokens:len"}
          code: {<<: *tokens, path: code}
        unit: tokens
        epoch_size: 4000
        changes: [{at: 2000, weights: {web: 0.8, code: 0.2}}]
        """)  # fmt: skip
    means = {"web": sum(1 + i % 4 for i in range(90)) / 90, "code": sum(1 + i % 9 for i in range(30)) / 30}
    first, both = ds.counts(2000), ds.counts(4000)
    for counts, share in ((first, 0.5), ({name: both[name] - first[name] for name in first}, 0.8)):
        tokens = {name: count * means[name] for name, count in counts.items()}
        assert tokens["web"] / sum(tokens.values()) == pytest.approx(share, abs=0.01)


def test_changes_are_known_before_an_end_is_refused(tmp_path: Path) -> None:
    ds = opened(tmp_path, """
        sources: {web: {path: web, weight: 1}, code: {path: code, weight: 0}}
        ends: all
        changes: [{at: 50, weights: {web: 1, code: 1}}]
        """)  # fmt: skip
    assert ds.num_samples > 100
    assert all(at is not None and at <= ds.num_samples for at in ds.exhausted_at().values())


def test_energon_s_metadataset(tmp_path: Path) -> None:
    text = """
        __module__: megatron.energon
        __class__: MetadatasetV2
        splits:
          train:
            blend:
              - {weight: 5, path: ./web/a.jsonl}
              - weight: 3
                blend_epochized:
                  - {repetitions: 2, path: ./code/a.jsonl, subflavors: {kind: short}}
                  - {repetitions: 1, path: ./books/a.jsonl}
          val:
            blend: [{weight: 5, path: ./web/a.jsonl}, {weight: 1, path: ./code/a.jsonl}]
          test: {path: ./books/a.jsonl}
        """
    with pytest.raises(UsageError, match=r"blend\.yaml, line 5, .*the splits train, val, test"):
        opened(tmp_path, text)
    ds = opened(tmp_path, text, split="train")
    assert (ds.num_samples, ds.counts(800)) == (FOREVER, near({"a": 500, "blend": 300}))
    inner = request_of(ds).sources[1].request
    assert isinstance(inner, MixRequest)
    assert inner.epoch_samples == 80
    row = next(row for row in ds if row["__source__"] == "blend/a")
    assert row["__subflavors__"] == {"kind": "short"}
    val = opened(tmp_path, text, split="val")
    assert val.counts(val.num_samples) == {"a": 90, "a-2": 30}
    assert opened(tmp_path, text, split="test").num_samples == 20


@pytest.mark.parametrize(("text", "epoch"), [
    ("- {remote: ROOT/web, proportion: 0.9}\n- {remote: ROOT/code, proportion: 0.1}\n", {"web": 108, "code": 12}),
    ("streams:\n  w: {local: web, repeat: 0.5, keep_zip: true}\n  c: {remote: ~, local: code}\n", {"w": 45, "c": 30}),
    ("streams: [{local: ., split: web, choose: 9}, {local: code, repeat: 2}]\n", {"web": 9, "code": 60}),
    ("streams: {w: {local: web}, c: {local: code}}\nepoch_size: 40\n", {"w": 30, "c": 10}),
])  # fmt: skip
def test_streaming_s_streams(tmp_path: Path, text: str, epoch: dict[str, int]) -> None:
    ds = opened(tmp_path, text.replace("ROOT", str(tmp_path)))
    assert ds.num_samples == sum(epoch.values())
    assert ds.counts(ds.num_samples) == near(epoch)


WRONG = [
    ("sources:\n  web: {path: web, wieght: 1}\n", 2, 20, "'wieght'.*did you mean 'weight'"),
    ("sources:\n  web: {path: web}\nsede: 1\n", 3, 1, "'sede'.*did you mean 'seed'"),
    ("sources:\n  web: {path: web}\n  web: {path: code}\n", 3, 3, "given on line 2 already"),
    ("sources:\n  web: {path: web, weight: 1}\n  code: {path: code}\n", 3, 9, "'code' has no weight, but .* one"),
    ("sources:\n  web: {path: web, weight: 1, repeat: 2}\n", 2, 31, "has weight and repeat"),
    ("sources:\n  web: {path: web, weight: heavy}\n", 2, 28, "must be a number; got 'heavy'"),
    ("sources:\n  web: {path: web}\n  code:\n    path: code\n    weight 3\nseed: 1\n", 5, 5, "this key has no ':'"),
    ("sources:\n  web:\n    path: web\n   weight: 1\n", 4, 4, "begin in the same column"),
    ("sources:\n  web:\n    path: web\n      weight: 1\n", 4, 13, "begin in the same column"),
    ("sources:\n\tweb: web\n", 2, 1, "indent by spaces"),
    ("sources:\n  web: {path: web, weight: -1}\n", 2, 28, "at least 0"),
    ("sources:\n  web: {path: web, weight: '1'}\n", 2, 28, "must be a number; got a text"),
    ("sources:\n  web: {path: web, weight: 1/0}\n", 2, 28, "must be a number"),
    ("sources:\n  web: {path: web, choose: 1.5}\n", 2, 28, "whole number"),
    ("sources:\n  web: {weight: 1}\n", 2, 8, "neither a path nor sources"),
    ("sources:\n  a/b: {path: web}\n", 2, 8, "without '/'"),
    ("sources: [web]\n", 1, 10, "maps names to values; got a list"),
    ("sources: {}\n", 1, 10, "names no dataset"),
    ("sources:\n  web: {path: nowhere/*.jsonl}\n", 2, 15, "nowhere"),
    ("sources:\n  web: {path: web, select: {langg: en}}\n", 2, 28, "langg"),
    ("sources: {web: web}\nshuffle: {window: big}\n", 2, 10, "big"),
    ("sources: {web: {path: web, weight: 0}, code: {path: code, weight: 1}}\nends: all\n", 2, 7, "'web' never comes"),
    ("sources:\n  a: {path: web, weight: 1}\n  b: {path: code, weight: 9, max_repeats: 2}\nends: all", 3, 43, "'b' wo"),
    ("sources: {web: web}\nchoice: evn\n", 2, 9, "did you mean 'even'"),
    ("sources: {web: web}\nchoice: {batch: 0}\n", 2, 9, "size of a batch"),
    ("sources: {web: web}\nends: never\n", 2, 7, "ends must be one of"),
    ("sources: {web: web}\nepoch_size: 9\nends: all\n", 3, 1, "ends and epoch_size both set"),
    ("sources: {w: {path: web, weight: 0}, c: {path: code, weight: 1}}\nmissing: none\nends: all\n", 3, 7, "'w' never"),
    ("sources: {web: {path: web, repeat: 2}}\nends: first\n", 2, 1, "ends and repeat both set"),
    ("sources: {web: {path: web, choose: 2}}\nends: first\n", 2, 1, "ends and choose both set"),
    ("sources: {web: web}\nepoch_size: many\n", 2, 13, "must be a number"),
    ("sources: {web: web}\nshuffle: {windw: 1}\n", 2, 11, "did you mean 'window'"),
    ("sources: {web: web}\nchanges:\n- {at: 5}\n", 3, 3, "no weights"),
    ("sources: {web: web}\nchanges:\n- {at: 5, weights: {wob: 1}}\n", 3, 21, "did you mean 'web'"),
    ("sources: {web: web, code: code}\nchanges:\n- {at: 5, weights: {web: 1}}\n", 3, 20, "'code' is missing"),
    ("sources: {web: web}\nchanges:\n- {at: 5, weights: {web: 1}}\n- {at: 5, weights: {web: 1}}\n", 4, 8, "after"),
    ("sources: {web: web}\nchanges:\n- {at: 5, weights: {web: 0}}\n", 3, 3, "weight above zero"),
    ("sources: {web: web}\nseed: !!python/name:os.system\n", 2, 7, "tag"),
    ("sources: {web: web}\nseed: [1\n", 3, 1, "not YAML"),
    ("sources: {web: web}\nseed: *one\n", 2, 7, "undefined alias"),
    ("sources: &all {inner: {sources: *all}}\n", 1, 10, "within its own value"),
    ("sourcs: {web: web}\n", 1, 1, "did you mean 'sources'"),
    ("- {remote: web, proportoin: 1}\n", 1, 17, "did you mean 'proportion'"),
    ("- {remote: web, proportion: 1}\n- {remote: code, repeat: 1}\n", 2, 3, "no proportion"),
    ("- {repeat: 1}\n", 1, 3, "neither remote nor local"),
    ("streams: [{local: web, repeat: 1}]\nepoch_size: 4\n", 2, 13, "set the length of an epoch"),
    ("splits:\n  train:\n    blend: [{path: web, wieght: 2}]\n", 3, 25, "did you mean 'weight'"),
    ("splits:\n  train:\n    blend: [{path: web, aux: {a: b}}]\n", 3, 25, "shoal does not support"),
    ("splits: {train: {join: [{path: web}]}}\n", 1, 18, "shoal does not support"),
    ("sources:\n  a: {path: web, weight: 1}\n  b: {path: code, weight: 9}\nends: all\nmax_repeats: 2", 5, 14, "'b' wo"),
    ("sources:\n  again: blend.yaml\n", 2, 10, "among its own sources"),
    ("sources:\n  web: {path: web, storage_options: [hunter2]}\n", 2, 37, "maps names"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "line", "column", "message"), WRONG, ids=lambda each: str(each)[:40])
def test_an_error_names_line_and_column(tmp_path: Path, text: str, line: int, column: int, message: str) -> None:
    with pytest.raises(ShoalError) as caught:
        opened(tmp_path, text)
    said = str(caught.value)
    place = f"{tmp_path / 'blend.yaml'}, line {line}, column {column}: "
    assert said.startswith(place), said
    assert re.search(message, said, re.DOTALL), said
    assert "hunter2" not in said


def test_a_secret_in_a_file_is_not_shown(tmp_path: Path) -> None:
    for path in ("https://me:hunter2@127.0.0.1:9/a.jsonl?key=hunter2", "nowhere.jsonl"):
        options = "{deadline_seconds: 0.1, headers: {X-Key: hunter2}, rgion: hunter2}"
        with pytest.raises(ShoalError) as caught:
            opened(tmp_path, f"sources:\n  web: {{path: '{path}', storage_options: {options}}}\n")
        assert "line 2" in str(caught.value)
        assert "hunter2" not in str(caught.value)


def test_a_file_that_would_unfold_to_very_much_is_refused() -> None:
    text = "a: &a0 [x, x]\n" + "".join(f"b{n}: &a{n + 1} [*a{n}, *a{n}, *a{n}, *a{n}]\n" for n in range(20))
    with pytest.raises(UsageError, match=r"line \d+, column \d+: the file holds more than"):
        parse_yaml(text.encode(), "bomb.yaml")
    with pytest.raises(UsageError, match="nested too deeply"):
        parse_yaml(b"[" * 5000 + b"]" * 5000, "deep.yaml")


def test_a_remote_file_names_its_sources_by_relative_urls(tmp_path: Path) -> None:
    (tmp_path / "mixes").mkdir()
    text = "sources: {web: {path: ../web/a.jsonl, weight: 1}, code: {path: ../code/a.jsonl, weight: 1}}\n"
    (tmp_path / "mixes" / "blend.yaml").write_text(text)
    with RangeServer(tmp_path) as server:
        far = shoal.open(f"{server.url}/mixes/blend.yaml", storage_options={"deadline_seconds": 5})
        near = shoal.open(tmp_path / "mixes" / "blend.yaml", storage_options={"deadline_seconds": 5})
        assert far.ids().tolist() == near.ids().tolist()
        assert [row["text"] for row in far] == [row["text"] for row in near]
        (tmp_path / "mixes" / "blend.yaml").write_text(text.replace("weight: 1}}", "wight: 1}}"))
        with pytest.raises(UsageError, match=r"/mixes/blend\.yaml, line 1, column 81: .*'wight'") as caught:
            shoal.open(f"{server.url}/mixes/blend.yaml?key=hunter2", storage_options={"deadline_seconds": 5})
        assert "hunter2" not in str(caught.value)


def test_what_a_mixture_file_cannot_take_is_refused(tmp_path: Path) -> None:
    text = "sources: {web: web}\n"
    with pytest.raises(UsageError, match="index= belongs to one dataset"):
        opened(tmp_path, text, index=tmp_path / "x.index")
    with pytest.raises(ShoalError):
        shoal.open(tmp_path / "none.yaml")
    (tmp_path / "data.yaml").mkdir()
    (tmp_path / "web" / "a.jsonl").rename(tmp_path / "data.yaml" / "a.jsonl")
    assert shoal.open(tmp_path / "data.yaml").num_samples == SIZES["web"]


@pytest.mark.parametrize("options", ["zqhidden", "[zqhidden]", "{headers: zqhidden}", "{odd: zqhidden}"])
def test_errors_show_no_storage_options(options: str, tmp_path: Path) -> None:
    path = tmp_path / "blend.yaml"
    path.write_text(f"sources: {{web: {{path: 'http://127.0.0.1:9/a.jsonl', storage_options: {options}}}}}\n")
    with pytest.raises(UsageError) as caught:
        shoal.open(path)
    assert "line 1" in str(caught.value)
    assert "zqhidden" not in f"{caught.value!r}{caught.value}"


@pytest.mark.parametrize("scheme", ["filecache", "simplecache", "blockcache"])
def test_a_mixture_file_writes_no_file(scheme: str, tmp_path: Path) -> None:
    """A cache of fsspec would write a file with a name of the mixture file's choice, where Python may import it."""
    pytest.importorskip("fsspec")
    (tmp_path / "victim").mkdir()
    (tmp_path / "sitecustomize.py").write_text("import os\n")
    options = f"{{target_protocol: file, cache_storage: '{tmp_path}/victim', same_names: true}}"
    text = (
        f"sources: {{a: {{path: '{scheme}://{tmp_path}/sitecustomize.py', format: text, storage_options: {options}}}}}"
    )
    with pytest.raises(UsageError, match=r"line 1, column \d+: storage_options .* 'target_protocol'(?s:.)*shoal.open"):
        list(opened(tmp_path, text))
    assert list((tmp_path / "victim").iterdir()) == []


@pytest.mark.parametrize(
    "name",
    [
        *("federated_token_file", "service_account_path", "proxy", "ca_bundle", "filesystem", "client_options"),
        "allow_invalid_certificates",
    ],
)
def test_a_mixture_file_sends_no_file_of_this_machine(name: str, tmp_path: Path) -> None:
    text = f"sources:\n  a: {{path: 's3://bucket/a.jsonl', storage_options: {{{name}: /etc/hostname}}}}\n"
    with pytest.raises(UsageError, match=f"line 2, column 54: storage_options .* '{name}'") as caught:
        opened(tmp_path, text)
    assert "hostname" not in str(caught.value)
