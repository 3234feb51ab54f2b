"""Shared by the bodies of several routes: the types of their fields, and the refusal for an invalid body."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, FailFast, Field, ValidationError

from model_store.live_graph.operations import Kind
from service.errors import Refusal

MAX_ID_LENGTH = 256
NodeId = Annotated[int, Field(ge=-(2**63), lt=2**63)] | Annotated[str, Field(max_length=MAX_ID_LENGTH)]
"""A row number from 0, or one of the snapshot's own ids if it has them."""
LIGHT_BYTES = 16 * 1024
"""Parsing a smaller body takes a few milliseconds, whatever its content."""
T = TypeVar("T")


class _FailFast(FailFast):
    """FailFast with a hash, which `typing` needs for the members of a union."""

    def __hash__(self) -> int:
        return hash(type(self))


Many = Annotated[list[T], _FailFast()]
"""A list that reports only its first invalid item: reporting all of a large body would take seconds and gigabytes."""
_MAX_DETAILS = 10
_SPARSE, _NAMED = "SparseFeatures", "dict[constrained-str,nullable[union[float,bool,str]]]"
_KINDS = {
    "constrained-int", "constrained-str", "list[float]", _SPARSE, _NAMED, "float", "bool", "str", "literal['by_class']",
    "int", "list[nullable[float]]", "list[str]", *get_args(Kind),
}  # fmt: skip
"""pydantic's names for the kinds that an id, features, a feature, `probabilities`, a label and an operation may have."""
_KIND_PROBLEMS = {
    "int_type", "string_type", "list_type", "model_type", "dict_type", "float_type", "bool_type", "literal_error"
}  # fmt: skip
"""pydantic's names for the problem that a value has the wrong kind."""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class SparseFeatures(Strict):
    """The features that are not zero."""

    indices: Many[Annotated[int, Field(ge=0, lt=2**31)]]
    values: Many[float]


NamedFeatures = dict[Annotated[str, Field(max_length=MAX_ID_LENGTH)], float | bool | str | None]
"""Values by the names of `GET /features`. No value is a list, so features named `indices` and `values` are not mistaken for
`SparseFeatures`."""


def refusal_for_body(error: ValidationError, place: str = "", **more: Any) -> Refusal:
    """`place`: the part of the body that was validated; `more`: further details of the refusal."""
    problems = error.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return Refusal("not_json", f"the body is not JSON: {problems[0]['msg'].removeprefix('Invalid JSON: ')}")
    # An object with `indices` or `values` has sparse features; the keys of any other object are feature names.
    missing = {problem["loc"][-1] for problem in problems if problem["type"] == "missing" and _SPARSE in problem["loc"]}
    unmeant = _SPARSE if missing == {"indices", "values"} else _NAMED
    problems = [problem for problem in problems if unmeant not in problem["loc"]]
    messages = islice(_messages(problems).items(), _MAX_DETAILS)
    details = [{"where": ".".join(filter(None, (place, where[:200]))), "problem": message} for where, message in messages]
    return Refusal("invalid", f"{details[0]['where'] or 'the body'}: {details[0]['problem']}", problems=details, **more)


def _messages(problems: Sequence[Any]) -> dict[str, str]:
    """The text of each problem, by place in the body.

    If a value may have several kinds, pydantic reports a problem per kind, at a place that contains the name of the kind.
    If the value has one of them, only the problem of that kind is useful: it is at a deeper place, or not about the kind.
    """
    places: dict[str, list[tuple[bool, str]]] = {}
    for problem in problems:
        where = ".".join(str(part) for part in problem["loc"] if part not in _KINDS)
        message = f"op should be one of {', '.join(get_args(Kind))}" if "tag" in problem["type"] else problem["msg"]
        places.setdefault(where, []).append((problem["type"] in _KIND_PROBLEMS, message))
    messages = {}
    for where, reports in places.items():
        about_value = [message for about_kind, message in reports if not about_kind]
        if about_value or not any(other.startswith(f"{where}.") for other in places):
            first, *others = dict.fromkeys(about_value or [message for _, message in reports])
            messages[where] = " or ".join([first, *(message.removeprefix("Input should be ") for message in others)])
    return messages
