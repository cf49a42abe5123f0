"""Made nasty.tar and groups.json: what WebDataset 1.0.2 itself groups. Not run by the tests.

With webdataset==1.0.2 installed:  python tests/formats/data/make_webdataset_groups.py
"""

import base64
import io
import json
import tarfile
from pathlib import Path

HERE = Path(__file__).parent
MEMBERS = [
    ("__meta__", b"skipped"),
    ("__dir__/x.json", b"skipped"),
    ("dir", None),
    ("dir.v2/0001.JPG", b"jpg"),
    ("dir.v2/0001.Seg.PNG", b"png"),
    ("dir.v2/noext", b"in between"),
    ("link", "dir.v2/0001.JPG"),
    ("dir.v2/0001.cls", b"3"),
    ("./dir.v2/0001.cls", b"another key"),
    ("dir.v2/0001.cls", b"the key again, not adjacent"),
    (".hidden", b"no key"),
    ("dir/.hidden", b"the key is the directory"),
    ("dir/.Hidden2", b"the same key"),
    ("a.b/.c", b"no key"),
    ("trailing.", b"an empty suffix"),
    ("__x__.y", b"in a sample"),
    ("__x.y", b"in a sample"),
    ("__k__/y.z", b"skipped"),
    ("new\nline.txt", b"newline in the key"),
    ("d.x\nd/e.txt", b"newline in a directory"),
    ("tail.txt\n", b"newline at the end"),
    ("x..y", b"two dots"),
    ("\u00e9/\u00c9.\u00c4\u00d6", b"lower-cased beyond ASCII"),
    ("p/" * 120 + "long.txt", b"a long name"),
    ("empty.bin", b""),
    ("../up.txt", b"kept as a key"),
    ("/abs/olute.txt", b"kept as a key"),
]


def main() -> None:
    """Write the archive, and what WebDataset makes of it."""
    from webdataset.tariterators import group_by_keys, tar_file_expander

    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for number, (name, content) in enumerate(MEMBERS):
            info = tarfile.TarInfo(name)
            info.mtime = 0.5 if number % 3 == 0 else 1
            if content is None:
                info.type = tarfile.DIRTYPE
            elif isinstance(content, str):
                info.type, info.linkname = tarfile.SYMTYPE, content
            else:
                info.size = len(content)
            tar.addfile(info, io.BytesIO(content) if isinstance(content, bytes) else None)
    (HERE / "nasty.tar").write_bytes(out.getvalue())
    stream = io.BytesIO(out.getvalue())
    groups = []
    for sample in group_by_keys(tar_file_expander([{"url": "nasty.tar", "stream": stream}])):
        fields = {k: base64.b64encode(v).decode() for k, v in sample.items() if not k.startswith("__")}
        groups.append({"key": sample["__key__"], "fields": fields})
    (HERE / "groups.json").write_text(json.dumps(groups, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
