"""What the index of many shards costs the driver that merges its parts, in packers of other libraries.

``python bench/packer_drivers.py [--shards 100000]`` writes parts of an index as they lie there when all tasks are done
(no shard exists, none is read) and has the library merge them: Streaming's `merge_index` of a part for each task, with
one shard each, as `dataframe_to_mds` calls it; LitData's merge of a part for each of 1,000 workers. It prints CPU
seconds, the peak of memory beyond that of the imports, and the size of the index.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.compat.peers.environments import python_of  # after the path to it
from tests.environments import CannotHaveError

_MEASURED = """
import json, logging, os, resource, sys, time
from pathlib import Path
logging.disable(logging.CRITICAL)
out, num_shards = Path(sys.argv[1]), int(sys.argv[2])
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
def measured(merge):
    before, began, cpu = peak(), time.perf_counter(), time.process_time()
    merge()
    print(f"{time.process_time() - cpu:8.1f} s of CPU, {time.perf_counter() - began:8.1f} s, "
          f"{(peak() - before) / 1e6:8.0f} MB beyond {before / 1e6:.0f}; "
          f"index of {(out / 'index.json').stat().st_size / 1e6:.0f} MB")
"""
MERGES = {
    "Streaming 0.13.0, merge_index, a part a shard": (
        "streaming",
        """
from streaming.base.util import merge_index
data = {"basename": "shard.00000.mds", "bytes": 67108864, "hashes": {}}
shard = {"column_encodings": ["str", "bytes"], "column_names": ["key", "data"], "column_sizes": [None, None],
         "compression": None, "format": "mds", "hashes": [], "raw_data": data, "samples": 1000,
         "size_limit": 67108864, "version": 2, "zip_data": None}
text = json.dumps({"shards": [shard], "version": 2}, sort_keys=True)
for number in range(num_shards):
    os.makedirs(out / str(number))
    (out / str(number) / "index.json").write_text(text)
paths = [(str(out / str(number) / "index.json"), "") for number in range(num_shards)]
measured(lambda: merge_index(paths, str(out), keep_local=True))
""",
    ),
    "LitData 0.2.76, 1,000 parts": (
        "litdata",
        """
from litdata.streaming.cache import Cache
config = {"chunk_bytes": 67108864, "chunk_size": None, "compression": None, "data_format": ["str", "bytes"],
          "data_spec": "[1, {}]", "encryption": None, "item_loader": "PyTreeLoader"}
out.mkdir()
for worker in range(1000):
    chunks = [{"chunk_bytes": 67108864, "chunk_size": 1000, "dim": None, "filename": f"chunk-{worker}-{number}.bin"}
              for number in range(num_shards // 1000)]
    (out / f"{worker}.index.json").write_text(json.dumps({"chunks": chunks, "config": config}, sort_keys=True))
cache = Cache(str(out), chunk_bytes=1)
measured(lambda: cache._merge_no_wait())
""",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--directory", help="where the parts are written (temporary)")
    asked = parser.parse_args()
    for title, (peer, code) in MERGES.items():
        try:
            python = python_of(peer)
        except CannotHaveError as error:
            print(f"{title}: not measured, {error}")
            continue
        with tempfile.TemporaryDirectory(dir=asked.directory) as home:
            command = [python, "-c", _MEASURED + code, Path(home, "out"), str(asked.shards)]
            environment = {"TMPDIR": home, "HOME": home, "PATH": "/usr/bin:/bin", "LITDATA_DISABLE_VERSION_CHECK": "1"}
            done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
            print(f"{title:48} {done.stdout.strip()}")


if __name__ == "__main__":
    main()
