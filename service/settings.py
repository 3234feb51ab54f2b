"""Every setting of the service, in one table: environment variables SGF_*, and flags of the same name.

Parsing is strict: a value that cannot be meant is an error that names the variable, before anything starts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

Device = Literal["auto", "cpu", "cuda"]
Backend = Literal["auto", "numpy", "torch", "onnx"]
Jobs = Literal["auto", "local", "redis"]
REMOVED = ("SGF_MAX_INFLIGHT", "SGF_LATE_INFLIGHT", "SGF_MAX_LAG_SECONDS")
"""Settings of earlier releases that have no effect any more; SGF_MAX_QUEUE_SECONDS takes their place."""
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Read by the libraries of linear algebra."""


class SettingsError(ValueError):
    """Names the variable, what it holds and what was expected."""


def _setting(default: Any, about: str, parse: Callable[[str], Any], secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"about": about, "parse": parse, "secret": secret})


def _count(text: str, least: int = 1) -> int:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(f"expected a whole number of at least {least}")
    return int(text)


def _from_zero(text: str) -> int:
    return _count(text, 0)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65_535:
        raise ValueError("expected a port from 0 (any that is free) to 65535")
    return int(text)


def _number(text: str, most: float, expected: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value <= most:
        raise ValueError(f"expected {expected}")
    return value


def _seconds(text: str) -> float:
    return _number(text, 999_999, "a positive number of seconds")


def _share(text: str) -> float:
    return _number(text, 1, "a share above 0, at most 1")


def _switch(text: str) -> bool:
    if text.lower() not in ("true", "false", "1", "0", "yes", "no", "on", "off"):
        raise ValueError("expected true or false")
    return text.lower() in ("true", "1", "yes", "on")


def _one_of(choices: Any) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in get_args(choices):
            raise ValueError(f"expected one of {', '.join(get_args(choices))}")
        return text

    return parse


def _keys(text: str) -> tuple[str, ...]:
    keys = tuple(part.strip() for part in text.split(",") if part.strip())
    if not keys or any(len(key) < 16 for key in keys):
        raise ValueError("expected keys of at least 16 characters, separated by commas")
    return keys


def _token(text: str) -> str:
    if len(text) < 16:
        raise ValueError("expected at least 16 characters")
    return text


def _url(text: str) -> str:
    if not text.startswith(("redis://", "rediss://", "unix://")):
        raise ValueError("expected redis://, rediss:// or unix://")
    return text


@dataclass(frozen=True)
class Settings:
    store: Path = _setting(Path("var/models"), "folder of the models", Path)
    model: str | None = _setting(None, "which model to serve; empty: the only one in the store", str)
    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0 for all", str)
    port: int = _setting(8000, "port to listen on; 0: any that is free", _port)
    workers: int = _setting(1, "processes; each maps the same snapshot, so memory hardly grows", _count)
    device: Device = _setting("auto", "cpu, cuda, or auto: cuda where there is one", _one_of(Device))
    backend: Backend = _setting("auto", "numpy, torch, onnx, or auto: numpy on a CPU, torch on CUDA", _one_of(Backend))
    poll_seconds: float = _setting(0.5, "how often a worker looks whether another version went live", _seconds)
    max_body_bytes: int = _setting(8 * 2**20, "largest request body, after decompression", _count)
    max_body_weight: int = _setting(
        100_000, "most values in one body, a field or object counted as 40: reading so many takes about 20 ms", _count
    )
    max_nodes: int = _setting(1000, "most nodes, known and new, in one request", _count)
    max_neighbors: int = _setting(20_000, "most neighbours of all new nodes of one request", _count)
    max_recompute: int = _setting(
        200_000, "most links that the exact answers of one request may walk over; frozen ones are not limited", _count
    )
    max_queue_seconds: float = _setting(
        0.15, "work that may wait for one worker; beyond it requests are refused (429)", _seconds
    )
    max_buffer_bytes: int = _setting(
        64 * 2**20,
        "request bodies and unread answers that one worker holds; beyond that 429, and slow readers are cut off",
        _count,
    )
    max_connections: int = _setting(4096, "open connections of one worker; more are answered with 503 and closed", _count)
    key_rate: int = _setting(0, "requests per second, worker and API key, beyond which 429; 0: no limit", _from_zero)
    batch_cost: int = _setting(4096, "work of one batch, about one unit per node and neighbour", _count)
    inline_cost: int = _setting(
        512, "work of a request up to which it is answered on the event loop; more goes to the compute process", _from_zero
    )
    deadline_seconds: float = _setting(2.0, "longest wait for an expensive answer; then 503", _seconds)
    body_seconds: float = _setting(10.0, "longest wait for a request's body; then 408", _seconds)
    redis_url: str | None = _setting(
        None, "shared cache, and jobs for sgf-worker; empty: a cache in each process, and local jobs", _url, secret=True
    )
    redis_password_file: Path | None = _setting(None, "file with the password of Redis, if SGF_REDIS_URL has none", Path)
    redis_timeout_seconds: float = _setting(0.05, "longest that a look-up in Redis may take", _seconds)
    cache_bytes: int = _setting(64 * 2**20, "size of a process's own cache; 0 turns caching off", _from_zero)
    cache_ttl_seconds: float = _setting(3600.0, "how long Redis keeps an answer", _seconds)
    cache_known: bool = _setting(
        False,
        "also cache questions about known nodes only: slower in Redis, quicker in memory where half of them repeat",
        _switch,
    )
    api_keys: tuple[str, ...] = _setting((), "keys that may ask, by commas; empty: everybody may", _keys, secret=True)
    admin_token: str | None = _setting(None, "may use /admin; empty: /admin is off", _token, secret=True)
    data_root: Path = _setting(Path("data"), "folder of the data that a retraining may use; nothing else is read", Path)
    jobs: Jobs = _setting(
        "auto", "who trains: local, redis (sgf-worker), or auto: redis where SGF_REDIS_URL is set", _one_of(Jobs)
    )
    training_seconds: float = _setting(86_400.0, "longest retraining; then it is stopped", _seconds)
    training_threads: int = _setting(0, "threads of a retraining; 0: half of the cores", _from_zero)
    keep_versions: int = _setting(
        10, "newest versions that a retraining keeps when it has published, besides the live one and the one before", _count
    )
    auto_rollback: bool = _setting(True, "go back by itself from a version that fails soon after it went live", _switch)
    probation_seconds: float = _setting(300.0, "how long after it went live a version may be left by itself", _seconds)
    probation_answers: int = _setting(20, "answers of one worker before it judges a version by its failures", _count)
    probation_failures: float = _setting(
        0.2, "share of answers of one worker that fail (500) above which it goes back", _share
    )
    access_log: bool = _setting(True, "one JSON line per request", _switch)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **given: str | None) -> Settings:
        """From SGF_* variables, and over them what was given as flags. An empty value counts as unset.

        Raises:
            SettingsError: a value that cannot be meant, or a variable SGF_* that nothing reads.
        """
        environ = os.environ if environ is None else environ
        known = {variable(one.name): one for one in fields(cls)}
        unknown = sorted(name for name in environ if name.startswith("SGF_") and name not in {*known, *REMOVED})
        if unknown:
            raise SettingsError(f"{unknown[0]} is not a setting, expected one of {', '.join(known)}")
        texts = {one.name: given.get(one.name) or environ.get(name) for name, one in known.items()}
        settings = cls(**{name: _parsed(name, text) for name, text in texts.items() if text})
        if settings.jobs == "redis" and settings.redis_url is None:
            raise SettingsError("SGF_JOBS is 'redis': expected SGF_REDIS_URL to say which")
        settings.redis_password()
        return settings

    @property
    def jobs_in_redis(self) -> bool:
        return self.jobs == "redis" or (self.jobs == "auto" and self.redis_url is not None)

    def redis_password(self) -> str | None:
        """The content of `redis_password_file`. Raises SettingsError if it cannot be read or is empty."""
        if self.redis_password_file is None:
            return None
        try:
            if password := self.redis_password_file.read_text().strip():
                return password
            problem = "the file is empty"
        except (OSError, UnicodeError) as error:
            problem = f"the file cannot be read ({getattr(error, 'strerror', 'it is not UTF-8')})"
        raise SettingsError(f"SGF_REDIS_PASSWORD_FILE is '{self.redis_password_file}': {problem}")

    def resolved(self) -> dict[str, str]:
        """Every setting as text, by its variable; secrets hidden."""
        return {variable(one.name): _shown(getattr(self, one.name), one.metadata["secret"]) for one in fields(self)}


def variable(name: str) -> str:
    return f"SGF_{name.upper()}"


def _parsed(name: str, text: str) -> Any:
    about = next(one.metadata for one in fields(Settings) if one.name == name)
    try:
        return about["parse"](text)
    except ValueError as error:
        raise SettingsError(f"{variable(name)} is {'(hidden)' if about['secret'] else repr(text)}: {error}") from None


def _shown(value: Any, secret: bool) -> str:
    if value is None or value == ():
        return ""
    return "(set)" if secret else str(value).lower() if isinstance(value, bool) else str(value)


def table() -> str:
    """The table of docs/configuration.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    rows += [
        f"| `{variable(one.name)}` | {_shown(one.default, False) or '(empty)'} | {one.metadata['about']} |"
        for one in fields(Settings)
    ]
    return "\n".join(rows) + "\n"
