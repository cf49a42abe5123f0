def exchange(
    fileno: int,
    is_kept: bool,
    request: bytes,
    buffer: memoryview | None,
    num_bytes: int,
    silence_seconds: float,
    most_seconds: float,
    /,
) -> tuple[bytes, int, bytes] | None: ...
