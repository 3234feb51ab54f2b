"""Feature columns by name: vectors, their inverse, JSON, and the errors for wrong values."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from model_store import DataError, FeatureColumn, FeatureSchema, FeatureValueError

SCHEMA = FeatureSchema(
    (
        FeatureColumn("days", "number"),
        FeatureColumn("partner", "boolean"),
        FeatureColumn("genre", "category", ("jazz", "rock")),
        FeatureColumn("age", "number", fill=40.5, flag=True),
        FeatureColumn("joined", "date"),
    )
)
VALUES: dict[str, Any] = {"days": 100, "partner": True, "genre": "rock", "age": 30, "joined": "1970-01-11"}


def test_positions_follow_the_order_of_the_columns() -> None:
    names = ["days", "partner", "genre=jazz", "genre=rock", "age", "age is missing", "joined"]
    assert (SCHEMA.position_names, SCHEMA.width) == (names, 7)
    assert SCHEMA.encode(VALUES).tolist() == [100, 1, 0, 1, 30, 0, 10]
    assert SCHEMA.encode(VALUES).dtype == np.float64
    earlier = VALUES | {"joined": "1969-12-31", "partner": 0, "days": np.float32(0.5), "genre": "jazz"}
    assert SCHEMA.encode(earlier).tolist() == [0.5, 0, 1, 0, 30, 0, -1]


@pytest.mark.parametrize("values", [VALUES | {"age": None}, {name: VALUES[name] for name in VALUES if name != "age"}])
def test_a_missing_value_is_filled_in_and_flagged(values: dict[str, Any]) -> None:
    vector = SCHEMA.encode(values)
    assert vector.tolist() == [100, 1, 0, 1, 40.5, 1, 10]
    assert SCHEMA.decode(vector) == VALUES | {"age": None}


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (FeatureColumn("x", "category", ("a", "b"), fill="b", flag=True), [0, 1, 1]),
        (FeatureColumn("x", "category", ("a", "b"), fill="b"), [0, 1]),
        (FeatureColumn("x", "date", fill="1970-01-03"), [2]),
        (FeatureColumn("x", "date", fill=2.5), [2.5]),
        (FeatureColumn("x", "boolean", fill=0.25), [0.25]),
    ],
)
def test_every_kind_has_a_fill(column: FeatureColumn, expected: list[float]) -> None:
    assert FeatureSchema((column,)).encode({}).tolist() == expected


def test_a_vector_decodes_to_its_values() -> None:
    assert SCHEMA.decode(SCHEMA.encode(VALUES).astype(np.float32)) == VALUES
    assert SCHEMA.decode(np.array([0, 0.5, 1, 1, 0, 0, 1e9])) == {
        "days": 0.0,
        "partner": 0.5,
        "genre": None,
        "age": 0.0,
        "joined": 1e9,
    }
    with pytest.raises(DataError, match=r"a feature vector has shape \(6,\), expected 7 numbers"):
        SCHEMA.decode(np.zeros(6))


@pytest.mark.parametrize(
    ("change", "column", "reason"),
    [
        ({"dayss": 1}, "dayss", "feature 'dayss' is not a feature of this model; did you mean 'days'?"),
        ({"zzz": 1}, "zzz", "is not a feature of this model; the first known names: days, partner, genre, age, joined"),
        ({"days": None}, "days", "feature 'days' is missing, expected a number"),
        ({"days": "100"}, "days", "feature 'days' is '100', expected a number"),
        ({"days": True}, "days", "is True, expected a number"),
        ({"days": float("nan")}, "days", "is nan, expected a number"),
        ({"days": float("inf")}, "days", "is inf, expected a number"),
        ({"days": 1e39}, "days", "is 1e[+]39, expected a number"),
        ({"days": 10**400}, "days", "expected a number"),
        ({"days": [1]}, "days", r"is \[1\], expected a number"),
        ({"age": "x"}, "age", "feature 'age' is 'x', expected a number"),
        ({"partner": 2}, "partner", "is 2, expected true or false"),
        ({"partner": "true"}, "partner", "is 'true', expected true or false"),
        ({"genre": "jaz"}, "genre", "is 'jaz', expected one of jazz, rock; did you mean 'jazz'?"),
        ({"genre": 1}, "genre", "is 1, expected one of jazz, rock"),
        ({"joined": "31.1.2024"}, "joined", "is '31.1.2024', expected a date such as 2024-01-31"),
        ({"joined": "2024-02-30"}, "joined", "expected a date"),
        ({"joined": 12}, "joined", "is 12, expected a date"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_column(change: dict[str, Any], column: str, reason: str) -> None:
    with pytest.raises(FeatureValueError, match=reason) as caught:
        SCHEMA.encode(VALUES | change)
    assert caught.value.column == column


def test_an_error_shows_a_few_of_many_categories_and_the_start_of_a_long_value() -> None:
    schema = FeatureSchema((FeatureColumn("x", "category", tuple(f"c{number}" for number in range(50))),))
    with pytest.raises(FeatureValueError) as caught:
        schema.encode({"x": "y" * 10_000})
    assert "c9 and 40 more" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_fill_must_be_a_value_that_json_gives_back() -> None:
    with pytest.raises(FeatureValueError, match="feature 'x' is True, expected a number"):
        FeatureColumn("x", "boolean", fill=True)


def test_json_gives_the_same_schema() -> None:
    content = SCHEMA.to_json()
    assert content[0] == {"name": "days", "kind": "number"}
    assert content[3] == {"name": "age", "kind": "number", "fill": 40.5, "flag": True}
    assert FeatureSchema.from_json(json.loads(json.dumps(content))) == SCHEMA


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({}, "is not a list of columns"),
        ([], "has no columns"),
        ([1], "feature column 0 is not an object"),
        ([{"name": "x"}], "lacks its name or its kind"),
        ([{"name": "", "kind": "number"}], "is called '', expected a name"),
        ([{"name": "x", "kind": "text"}], "is of kind 'text', expected number, boolean, category, date"),
        ([{"name": "x", "kind": "number", "width": 2}], "has the unknown field 'width'"),
        ([{"name": "x", "kind": "number", "fill": True}], "fill is bool"),
        ([{"name": "x", "kind": "number", "flag": 1}], "flag is int"),
        ([{"name": "x", "kind": "number", "flag": True}], "has a flag for missing values, but no value to fill in"),
        ([{"name": "x", "kind": "number", "fill": "a"}], "is 'a', expected a number"),
        ([{"name": "x", "kind": "number", "fill": float("nan")}], "is nan, expected a number"),
        ([{"name": "x", "kind": "number", "categories": ["a"]}], "categories are for the kind category"),
        ([{"name": "x", "kind": "category"}], "categories are for the kind category, which needs them"),
        ([{"name": "x", "kind": "category", "categories": ["a", "a"]}], "has a category twice"),
        ([{"name": "x", "kind": "category", "categories": ["a", 1]}], "a category is not a string"),
        ([{"name": "x", "kind": "category", "categories": ["a"], "fill": "b"}], "is 'b', expected one of a"),
        ([{"name": "x", "kind": "number"}] * 2, "two columns with the same name"),
    ],
)
def test_json_that_is_no_schema_is_refused(content: Any, reason: str) -> None:
    with pytest.raises(DataError, match=reason):
        FeatureSchema.from_json(content)
