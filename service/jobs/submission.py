"""The body of POST /admin/retrain, and the command line made from it. Every argument is validated."""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

import orjson
from pydantic import BaseModel, ConfigDict, Field, model_validator

from service.http.errors import Refusal
from service.jobs.catalogue import Catalogue

Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]
Rate = Annotated[float, Field(ge=0, le=10, allow_inf_nan=False)]


class Overrides(BaseModel):
    """Settings that override those of the recipe. The bounds limit the memory and time of one request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    hidden: Annotated[int, Field(ge=1, le=4096)] | None = None
    heads: Annotated[int, Field(ge=1, le=64)] | None = None
    layers: Annotated[int, Field(ge=0, le=64)] | None = None
    alpha: Share | None = None
    attention_dropout: Share | None = None
    gnn_dropout: Share | None = None
    learning_rate: Rate | None = None
    weight_decay: Rate | None = None
    gnn_weight_decay: Rate | None = None
    epochs: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    patience: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    batch_nodes: Annotated[int, Field(ge=2, le=2**31)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**32)] | None = None
    gnn_input: Literal["shared", "own", "features"] | None = None
    feature_transform: Literal["none", "row", "standard"] | None = None


class Submission(BaseModel):
    """A request to retrain."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"recipe": "digits", "warm_start": True, "activate": "if_better"}]},
    )

    dataset: str | None = Field(default=None, max_length=64, description="a data set by its name")
    data: str | None = Field(default=None, max_length=1024, description="a graph.npz or a folder, relative to SGF_DATA_ROOT")
    recipe: str | None = Field(default=None, max_length=64, description="settings by name; it also names a data set")
    overrides: Overrides = Overrides()
    warm_start: bool = Field(default=False, description="start from the live weights where shapes match")
    refresh: bool = Field(default=False, description="no training: the live weights with this data")
    activate: Literal["never", "if_better", "always"] = "if_better"

    @model_validator(mode="after")
    def _has_data(self) -> Submission:
        if self.dataset is not None and self.data is not None:
            raise ValueError("expected either dataset or data, not both")
        if self.dataset is None and self.data is None and self.recipe is None:
            raise ValueError("expected dataset, data or recipe")
        if self.refresh and (self.warm_start or self.recipe or self.changes()):
            raise ValueError("a refresh trains nothing: it takes no recipe, overrides or warm_start")
        return self

    def changes(self) -> dict[str, Any]:
        return self.overrides.model_dump(exclude_none=True)

    def content(self) -> dict[str, Any]:
        """For the record: with defaults, without empty fields."""
        return self.model_dump(exclude_none=True)

    def digest(self) -> str:
        """Independent of the order and the spelling of fields."""
        return hashlib.sha256(orjson.dumps(self.content(), option=orjson.OPT_SORT_KEYS)).hexdigest()

    def check(self, catalogue: Catalogue) -> None:
        """Raises Refusal for a recipe, data set or path that does not exist."""
        if self.recipe is not None:
            catalogue.check_recipe(self.recipe)
        if self.dataset is not None:
            catalogue.check_dataset(self.dataset)
        if self.data is not None:
            catalogue.path_of(self.data)

    def arguments(self, catalogue: Catalogue) -> list[str]:
        """For `python -m training`. Raises Refusal as `check` does: the record may come from Redis, and data may be gone."""
        self.check(catalogue)
        arguments = ["refresh"] if self.refresh else ["--no-checkpoint"]
        if self.data is not None:
            arguments.append(f"--data={catalogue.path_of(self.data)}")
        elif self.dataset is not None or self.refresh:
            arguments.append(f"--dataset={self.dataset}")
        if self.recipe is not None:
            arguments.append(f"--recipe={self.recipe}")
        if self.warm_start:
            arguments.append("--warm-start")
        arguments += [f"{_flag(name)}={value}" for name, value in self.changes().items()]
        return [*arguments, f"--activate={self.activate}"]


def parsed(request: dict[str, Any]) -> Submission:
    """The submission in a job's record."""
    try:
        return Submission.model_validate(request)
    except ValueError:
        raise Refusal("invalid", "the job's request is not valid; it may be of another version of the service") from None


def _flag(setting: str) -> str:
    return "--features" if setting == "feature_transform" else f"--{setting.replace('_', '-')}"
