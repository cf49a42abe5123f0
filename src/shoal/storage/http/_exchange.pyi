def exchange(
    fileno: int,
    is_kept: bool,
    request: bytes,
    buffer: memoryview,
    silence_seconds: float,
    until_seconds: float,
    /,
) -> tuple[bytes, int] | None: ...
