"""All settings of the service, in one table: environment variables SGF_*, and flags of the same name.

Parsing is strict: an invalid value stops the start with an error that names the variable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args

Device = Literal["auto", "cpu", "cuda"]  # as in sgformer/device.py, whose import loads numpy before its threads are limited
Backend = Literal["auto", "numpy", "torch", "onnx"]
Jobs = Literal["auto", "local", "redis"]
GraphLogKind = Literal["file", "redis"]
LogFormat = Literal["auto", "text", "json"]
REMOVED = ("SGF_MAX_INFLIGHT", "SGF_LATE_INFLIGHT", "SGF_MAX_LAG_SECONDS")
"""Settings of earlier releases that have no effect any more; SGF_MAX_QUEUE_SECONDS replaces them."""
THREAD_LIMITS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
"""Environment variables that limit the threads of linear algebra libraries."""


class SettingsError(ValueError):
    """Names the variable, its value and the expected value."""


def _setting(default: Any, about: str, parse: Callable[[str], Any], secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"about": about, "parse": parse, "secret": secret})


def _parser(convert: Callable[[str], Any], is_valid: Callable[[Any], bool], expected: str) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        try:
            value = convert(text)
        except (ValueError, KeyError):
            raise ValueError(f"expected {expected}") from None
        if not is_valid(value):
            raise ValueError(f"expected {expected}")
        return value

    return parse


def _whole(text: str) -> int:
    return int(text) if text.isdecimal() else -1  # `int` also takes "1_0" and "+1"


def _one_of(choices: Any) -> Callable[[str], str]:
    return _parser(str, get_args(choices).__contains__, f"one of {', '.join(get_args(choices))}")


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _are_long(keys: tuple[str, ...]) -> bool:
    return bool(keys) and all(len(key) >= 16 for key in keys)


ORIGIN = re.compile(r"https?://(?:[a-z0-9.-]+|\[[0-9a-f:]+\])(?::\d{1,5})?")
"""An origin as browsers send it: in lower case, and without a path."""
SWITCH = dict.fromkeys(("true", "1", "yes", "on"), True) | dict.fromkeys(("false", "0", "no", "off"), False)
_count = _parser(_whole, lambda number: number >= 1, "a whole number of at least 1")
_from_zero = _parser(_whole, lambda number: number >= 0, "a whole number of at least 0")
_port = _parser(_whole, lambda number: 0 <= number <= 65_535, "a port from 0 (any that is free) to 65535")
_seconds = _parser(float, lambda number: 0 < number <= 999_999, "a positive number of seconds")
_share = _parser(float, lambda number: 0 < number <= 1, "a share above 0, at most 1")
_switch = _parser(lambda text: SWITCH[text.lower()], lambda _: True, "true or false")
_keys = _parser(_split, _are_long, "keys of at least 16 characters, separated by commas")
_origins = _parser(
    _split,
    lambda origins: origins == ("*",) or all(map(ORIGIN.fullmatch, origins)),
    "* or origins such as https://app.example.com, without a path, separated by commas",
)
_token = _parser(str, lambda text: len(text) >= 16, "at least 16 characters")
_url = _parser(str, lambda text: text.startswith(("redis://", "rediss://", "unix://")), "redis://, rediss:// or unix://")


@dataclass(frozen=True)
class Settings:
    store: Path = _setting(Path("var/models"), "folder of the models", Path)
    local_cache: Path | None = _setting(
        None,
        "folder on a local disk for copies of the live and the previous version, if the store is on a network file system; "
        "empty: versions are read from the store",
        Path,
    )
    model: str | None = _setting(None, "name of the model to serve; empty: the only model in the store", str)
    wait_for_model: bool = _setting(False, "start without a model, and wait for one; /health/ready says so", _switch)
    host: str = _setting("127.0.0.1", "address to listen on; 0.0.0.0: all addresses", str)
    port: int = _setting(8000, "port to listen on; 0: any free port", _port)
    workers: int = _setting(1, "worker processes; they share the memory of the mapped snapshot", _count)
    device: Device = _setting(
        "auto", "cpu, cuda, or auto: cuda if there is a GPU; also for retraining jobs", _one_of(Device)
    )
    backend: Backend = _setting("auto", "numpy, torch, onnx, or auto: numpy on a CPU, torch on CUDA", _one_of(Backend))
    poll_seconds: float = _setting(0.5, "interval at which a worker checks the store for a new live version", _seconds)
    max_body_bytes: int = _setting(8 * 2**20, "largest request body, after decompression", _count)
    max_body_weight: int = _setting(
        100_000, "most values in a body; a name or object counts as 40 values; 100,000 take about 20 ms to parse", _count
    )
    max_nodes: int = _setting(1000, "most nodes, known and new, in a request", _count)
    max_neighbors: int = _setting(20_000, "most neighbours in a request, over all its new nodes", _count)
    max_recompute: int = _setting(
        200_000, "most adjacency entries that exact answers to a request read; frozen: no limit", _count
    )
    max_explain: int = _setting(300_000, "most states that an explanation reads, about 1 s of work; beyond it 413", _count)
    max_queue_seconds: float = _setting(0.15, "most work in the queue of a worker; further requests get 429", _seconds)
    max_buffer_bytes: int = _setting(
        64 * 2**20, "request bodies and unread answers in a worker; beyond it 429, and slow readers are disconnected", _count
    )
    max_connections: int = _setting(4096, "open connections of a worker; further ones get 503 and are closed", _count)
    key_rate: int = _setting(
        0, "requests per second for each API key in each worker; further ones get 429; 0: no limit", _from_zero
    )
    batch_cost: int = _setting(4096, "largest cost of a batch, about one unit per node and neighbour", _count)
    inline_cost: int = _setting(512, "largest cost computed on the event loop, not in the compute process", _from_zero)
    deadline_seconds: float = _setting(
        2.0, "longest time for an expensive answer, and for the wait of a commit or of `min_sequence`; then 503", _seconds
    )
    body_seconds: float = _setting(10.0, "longest time for receiving a body; then 408", _seconds)
    redis_url: str | None = _setting(
        None, "Redis for a shared cache and for the jobs of sgf-worker; empty: local cache and local jobs", _url, secret=True
    )
    redis_password_file: Path | None = _setting(None, "file with the password of Redis, if SGF_REDIS_URL has none", Path)
    redis_timeout_seconds: float = _setting(0.05, "longest time for a look-up in Redis", _seconds)
    cache_bytes: int = _setting(64 * 2**20, "size of the local cache of a worker; 0: no cache", _from_zero)
    cache_ttl_seconds: float = _setting(3600.0, "how long Redis keeps an answer", _seconds)
    cache_known: bool = _setting(
        False,
        "also cache requests for known nodes only: slower with Redis; locally, faster if half of the requests repeat",
        _switch,
    )
    api_keys: tuple[str, ...] = _setting((), "API keys, separated by commas; empty: no key is needed", _keys, secret=True)
    admin_token: str | None = _setting(None, "token for /admin; empty: /admin is off", _token, secret=True)
    write_keys: tuple[str, ...] = _setting(
        (),
        "keys for POST /graph, separated by commas; they are also valid as API keys; empty: the graph cannot be changed",
        _keys,
        secret=True,
    )
    graph_log: GraphLogKind = _setting(
        "file",
        "where changes of the graph are logged: file (in the store, for workers of one machine) or redis",
        _one_of(GraphLogKind),
    )
    max_operations: int = _setting(10_000, "most operations in a change of the graph, or in `assuming`", _count)
    compact_changes: int = _setting(
        50_000,
        "a job compacts the changes of the graph into a new version when this many nodes have changed, or a quarter of "
        "all nodes and at least 1,000; needs SGF_ADMIN_TOKEN; 0: only POST /admin/graph/compact does",
        _from_zero,
    )
    cors_origins: tuple[str, ...] = _setting(
        (), "origins whose pages may call the service from a browser, separated by commas; *: all, without cookies", _origins
    )
    data_root: Path = _setting(Path("data"), "folder of the data for retraining; no other data is read", Path)
    jobs: Jobs = _setting("auto", "local, redis (sgf-worker), or auto: redis if SGF_REDIS_URL is set", _one_of(Jobs))
    training_seconds: float = _setting(86_400.0, "longest retraining; then it is stopped", _seconds)
    training_threads: int = _setting(0, "threads of a retraining; 0: half of the cores", _from_zero)
    keep_versions: int = _setting(10, "newest versions that a retraining keeps, besides live and previous", _count)
    auto_rollback: bool = _setting(True, "roll back automatically from a version that fails during probation", _switch)
    probation_seconds: float = _setting(300.0, "duration of probation, from the activation of a version", _seconds)
    probation_answers: int = _setting(20, "answers of a worker before it judges a version", _count)
    probation_failures: float = _setting(0.2, "share of failed answers (500) above which a worker rolls back", _share)
    shadow_every: int = _setting(
        500,
        "one in this many answers is computed again in another way and compared, for at most a hundredth of the "
        "CPU time; 0: none",
        _from_zero,
    )
    access_log: bool = _setting(True, "one log line per request", _switch)
    log_format: LogFormat = _setting(
        "auto", "text, json (one object per line), or auto: text if standard error is a terminal", _one_of(LogFormat)
    )

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **flags: str | None) -> Settings:
        """Reads SGF_* variables; flags override them. An empty value counts as unset.

        Raises:
            SettingsError: a value is invalid, or a variable SGF_* is not a setting.
        """
        environ = os.environ if environ is None else environ
        settings = {variable(setting.name): setting for setting in fields(cls)}
        unknown = sorted(name for name in environ if name.startswith("SGF_") and name not in {*settings, *REMOVED})
        if unknown:
            from model_store.suggestions import did_you_mean  # late: it loads numpy, whose threads `sgf-serve` limits first

            hint = did_you_mean(unknown[0], settings) or "; sgf-serve --help lists all"
            raise SettingsError(f"{unknown[0]} is not a setting{hint}")
        values = {}
        for name, setting in settings.items():
            if text := flags.get(setting.name) or environ.get(name):
                try:
                    values[setting.name] = setting.metadata["parse"](text)
                except ValueError as error:
                    value = "(hidden)" if setting.metadata["secret"] else repr(text)
                    raise SettingsError(f"{name} is {value}: {error}") from None
        result = cls(**values)
        for name, place in (("SGF_JOBS", result.jobs), ("SGF_GRAPH_LOG", result.graph_log)):
            if place == "redis" and result.redis_url is None:
                raise SettingsError(f"{name} is 'redis': expected the address of Redis in SGF_REDIS_URL")
        result.redis_password()
        return result

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
        """The value of every setting as text, by variable, with secrets hidden."""
        values = {}
        for setting in fields(self):
            value = getattr(self, setting.name)
            values[variable(setting.name)] = "(set)" if setting.metadata["secret"] and value else _text(value)
        return values


def variable(name: str) -> str:
    return f"SGF_{name.upper()}"


def _text(value: Any) -> str:
    if value is None or value == ():
        return ""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def default(setting: Field[Any]) -> str:
    return _text(setting.default) or "(empty)"


def table() -> str:
    """The table of docs/configuration.md."""
    rows = ["| variable | default | meaning |", "|---|---|---|"]
    rows += [
        f"| `{variable(setting.name)}` | {default(setting)} | {setting.metadata['about']} |" for setting in fields(Settings)
    ]
    return "\n".join(rows) + "\n"
