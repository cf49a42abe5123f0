"""Real servers on the loopback interface, for as long as a context lasts."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.environments import CannotHaveError, run
from tests.integration.installs import azurite_program, nginx_program, swift_programs

_START_SECONDS = 60.0

# The account that every Azurite has; its key is in its manual.
_AZURITE_ACCOUNT = "devstoreaccount1"
_AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Server:
    """One server: ``root`` is the URL below which a test may put objects, ``options`` what opens it."""

    root: str
    options: dict[str, Any] = field(default_factory=dict)
    wrong_options: dict[str, Any] = field(default_factory=dict)
    directory: Path | None = None
    access_log: Path | None = None

    def sent_bytes(self) -> int:
        """Bytes of all bodies that were sent so far, by the server's own log."""
        assert self.access_log is not None
        return sum(map(int, self.access_log.read_text().split()))


def free_ports(count: int) -> list[int]:
    """Ports that nobody had a moment ago."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


@contextlib.contextmanager
def running(
    commands: Sequence[Sequence[str | Path]], ports: Sequence[int], log: Path, **environment: str
) -> Iterator[None]:
    """Processes that listen at ``ports``, until the end of the context; what they print goes into ``log``."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(log.open("ab"))
        processes = []
        for command in commands:
            process = subprocess.Popen(
                command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, env={**os.environ, **environment}
            )
            processes.append(process)
            stack.callback(_end, process)
        deadline = time.monotonic() + _START_SECONDS
        for port in ports:
            while not _listens(port):
                if any(process.poll() is not None for process in processes) or time.monotonic() > deadline:
                    said = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
                    msg = f"{Path(commands[0][0]).name} did not start; it said: {said[0][:300]}"
                    raise CannotHaveError(msg)
                time.sleep(0.05)
        yield


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


@contextlib.contextmanager
def nginx(more: str = "") -> Iterator[Server]:
    """nginx over a directory; what is below ``private/`` wants user "reader" and password "pass-of-the-test".

    ``more`` are further directives of the server.
    """
    program = nginx_program()
    with tempfile.TemporaryDirectory(prefix="shoal-nginx-") as directory:
        home, (port,) = Path(directory), free_ports(1)
        home.chmod(0o755)
        (home / "www" / "private").mkdir(parents=True)
        (home / "users").write_text("reader:{PLAIN}pass-of-the-test\n")
        places = "".join(f"{kind}_temp_path {home}/{kind};" for kind in _NGINX_PLACES)
        (home / "nginx.conf").write_text(
            f"""daemon off; pid {home}/pid; error_log stderr warn; worker_processes 1;
            {"user root;" if os.geteuid() == 0 else ""}
            events {{}}
            http {{ log_format sent $body_bytes_sent; access_log {home}/sent sent; {places}
              sendfile on; tcp_nopush on; keepalive_requests 100000;
              server {{ listen 127.0.0.1:{port}; root {home}/www; {more}
                location /private/ {{ auth_basic "the test"; auth_basic_user_file {home}/users; }} }} }}"""
        )
        command: list[str | Path] = [program, "-e", "stderr", "-p", home, "-c", home / "nginx.conf"]
        with running([command], [port], home / "log"):
            yield Server(f"http://127.0.0.1:{port}", directory=home / "www", access_log=home / "sent")


_NGINX_PLACES = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


@contextlib.contextmanager
def azurite() -> Iterator[Server]:
    """Azurite, with an empty container."""
    node, script = azurite_program()
    with tempfile.TemporaryDirectory(prefix="shoal-azurite-") as directory:
        (port,) = free_ports(1)
        where = ["--blobHost", "127.0.0.1", "--blobPort", str(port), "--location", directory]
        quiet = ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
        command: list[str | Path] = [node, script, *where, *quiet]
        with running([command], [port], Path(directory) / "log"):
            options = {
                "account_name": _AZURITE_ACCOUNT,
                "account_key": _AZURITE_KEY,
                "endpoint": f"http://127.0.0.1:{port}/{_AZURITE_ACCOUNT}",
                "allow_http": True,
            }
            make_container(options, "shoal")
            wrong = {**options, "account_key": "d3Jvbmcta2V5LW9mLXRoZS10ZXN0"}
            yield Server("az://shoal", options, wrong)


def make_container(options: dict[str, Any], name: str) -> None:
    """Make a container, by a signature of Azure's: no client of the test environment can."""
    import base64
    import hashlib
    import hmac
    from email.utils import formatdate

    account, date = options["account_name"], formatdate(usegmt=True)
    path = f"/{account}/{name}"
    headers = f"x-ms-date:{date}\nx-ms-version:2021-08-06\n"
    text = "PUT" + "\n" * 12 + headers + f"/{account}{path}\nrestype:container"
    key = base64.b64decode(options["account_key"])
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    request = urllib.request.Request(
        f"{options['endpoint']}/{name}?restype=container",
        method="PUT",
        headers={
            "x-ms-date": date,
            "x-ms-version": "2021-08-06",
            "Authorization": f"SharedKey {account}:{signature}",
            "Content-Length": "0",
        },
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        assert answer.status == 201


@contextlib.contextmanager
def swift() -> Iterator[Server]:
    """OpenStack Swift with its S3 interface: a proxy and the servers of accounts, containers and objects."""
    programs = swift_programs()
    with tempfile.TemporaryDirectory(prefix="shoal-swift-") as directory:
        home = Path(directory)
        try:
            os.setxattr(home, "user.shoal", b"1")
        except (OSError, AttributeError) as error:
            msg = f"Swift wants a file system with extended attributes, and {home} has none ({error})"
            raise CannotHaveError(msg) from error
        kinds = ("account", "container", "object", "proxy")
        ports = dict(zip(kinds, free_ports(4), strict=True))
        (home / "srv" / "d1").mkdir(parents=True)
        (home / "swift.conf").write_text(_SWIFT_CONF)
        run(programs / "python", "-W", "ignore", "-c", _RINGS, home, *(str(ports[kind]) for kind in kinds[:3]))
        for kind, port in ports.items():
            text = _PROXY_CONF if kind == "proxy" else _SERVER_CONF.format(kind=kind, srv=home / "srv")
            (home / f"{kind}.conf").write_text(_COMMON_CONF.format(port=port, home=home) + text)
        commands = [[programs / f"swift-{kind}-server", home / f"{kind}.conf"] for kind in kinds]
        with running(commands, list(ports.values()), home / "log", SWIFT_CONF_DIR=directory, PYTHONWARNINGS="ignore"):
            options = {
                "access_key_id": "test:tester",
                "secret_access_key": "testing",
                "region": "us-east-1",
                "endpoint": f"http://127.0.0.1:{ports['proxy']}",
            }
            yield Server("s3://shoal", options, {**options, "secret_access_key": "wrong-key-of-the-test"})


_SWIFT_CONF = """[swift-hash]
swift_hash_path_suffix = tests
[storage-policy:0]
name = one
default = yes
"""

_COMMON_CONF = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
workers = 0
swift_dir = {home}
log_level = ERROR
"""

_SERVER_CONF = """devices = {srv}
mount_check = false
[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""

_PROXY_CONF = """[pipeline:main]
pipeline = catch_errors cache s3api tempauth slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:cache]
use = egg:swift#memcache
[filter:s3api]
use = egg:swift#s3api
s3_acl = false
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""

_RINGS = """
import sys
from swift.common.ring import RingBuilder
home, *ports = sys.argv[1:]
for kind, port in zip(("account", "container", "object"), ports):
    builder = RingBuilder(4, 1, 1)
    builder.add_dev({"id": 0, "region": 1, "zone": 1, "ip": "127.0.0.1", "port": int(port), "device": "d1",
                     "weight": 1.0})
    builder.rebalance(seed=1)
    builder.get_ring().save(f"{home}/{kind}.ring.gz")
"""
