"""The body of POST /admin/retrain, and the command line made from it. Every argument is validated."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, model_validator

from model_store.run_contract import Overrides, Processes
from model_store.run_settings import Activation, dataset_descriptions, override_flag, recipe_names
from service.jobs.job import Job
from service.jobs.ledger import InvalidSubmission

LIVE = "live"
LIVE_OR_PATH = "a graph.npz or a folder, relative to SGF_DATA_ROOT; or live: the live graph"


class Submission(BaseModel):
    """A request to retrain."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"recipe": "digits", "warm_start": True, "activate": "if_better"}]},
    )

    dataset: str | None = Field(default=None, max_length=64, description="a data set by its name")
    data: str | None = Field(default=None, max_length=1024, description=LIVE_OR_PATH)
    recipe: str | None = Field(
        default=None, max_length=64, description="name of a recipe: its settings, and by default its data set"
    )
    overrides: Overrides = Overrides()
    warm_start: bool = Field(default=False, description="start from the live weights where shapes match")
    refresh: bool = Field(default=False, description="publish the live weights with this data, without training")
    activate: Activation = "if_better"
    discard_changes: bool = Field(
        default=False, description="activate although the live graph has changes that the data does not have"
    )
    processes: Processes = Field(
        default=1, description="processes on the machine that trains, which share the work; training then needs batch_nodes"
    )

    @classmethod
    def of(cls, job: Job) -> Submission:
        """Parses the request in a job record. Raises InvalidSubmission: another program or release may have written it."""
        try:
            return cls.model_validate(job.request)
        except ValueError:
            message = "the request in the job record is not valid; another release of the service may have written it"
            raise InvalidSubmission(message) from None

    @model_validator(mode="after")
    def _check_fields(self) -> Submission:
        if self.dataset is not None and self.data is not None:
            raise ValueError("expected either dataset or data, not both")
        if self.dataset is None and self.data is None and self.recipe is None:
            raise ValueError("expected dataset, data or recipe")
        if self.refresh and (self.warm_start or self.recipe or self.overrides != Overrides()):
            raise ValueError("a refresh trains nothing: it takes no recipe, overrides or warm_start")
        # A recipe and the live version have settings of their own, which the training checks.
        settings_known = self.recipe is None and self.data != LIVE
        if self.processes > 1 and not self.refresh and settings_known and self.overrides.batch_nodes is None:
            raise ValueError("several processes train in batches: expected overrides.batch_nodes, the nodes of a batch")
        return self

    def check(self, data_root: Path) -> None:
        """Raises InvalidSubmission for a recipe, data set or path that does not exist."""
        _check_name(self.recipe, recipe_names(), "recipe", "recipe")
        _check_name(self.dataset, list(dataset_descriptions()), "data set", "dataset")
        if self.data not in (None, LIVE):
            find_data(data_root, self.data)

    def arguments(self, data_root: Path) -> list[str]:
        """Returns the arguments for `python -m training`. Repeats `check`, because files may have been removed since the
        submission. Raises InvalidSubmission.
        """
        self.check(data_root)
        arguments = ["refresh"] if self.refresh else ["--no-checkpoint"]
        if self.data is not None:
            arguments.append(f"--data={LIVE if self.data == LIVE else find_data(data_root, self.data)}")
        elif self.dataset is not None:
            arguments.append(f"--dataset={self.dataset}")
        if self.recipe is not None:
            arguments.append(f"--recipe={self.recipe}")
        if self.discard_changes:
            arguments.append("--discard-changes")
        if self.warm_start:
            arguments.append("--warm-start")
        if self.processes > 1:
            arguments.append(f"--processes={self.processes}")
        overrides = self.overrides.model_dump(exclude_none=True)
        arguments += [f"{override_flag(name)}={value}" for name, value in overrides.items()]
        return [*arguments, f"--activate={self.activate}"]


def _check_name(name: str | None, names: list[str], kind: str, field: str) -> None:
    if name is not None and name not in names:
        raise InvalidSubmission(f"there is no {kind} {name!r}, expected one of {', '.join(names)}", field=field)


def find_data(root: Path, data: str) -> Path:
    """The file or folder below the data root. Raises InvalidSubmission for anything else."""
    relative = Path(data)
    if relative.is_absolute() or ".." in relative.parts or "\0" in data or not relative.parts:
        raise InvalidSubmission("data must be a relative path below the data root, without '..'", field="data")
    root = root.resolve()
    try:
        resolved = (root / relative).resolve(strict=True)
    except (OSError, RuntimeError):  # RuntimeError: a loop of symbolic links
        raise InvalidSubmission(f"there is no {data!r} below the data root", field="data") from None
    try:
        paths = [resolved, *(resolved.iterdir() if resolved.is_dir() else ())]
        if not all(path.resolve().is_relative_to(root) for path in paths):
            raise InvalidSubmission(f"{data!r} leads out of the data root", field="data")
        if any(path.exists() and not (path.is_file() or path.is_dir()) for path in paths):  # reading a pipe would block
            raise InvalidSubmission(f"{data!r} is, or holds, something that is not a file or folder", field="data")
    except (OSError, RuntimeError):
        raise InvalidSubmission(f"{data!r}, or a file in it, cannot be read by the service", field="data") from None
    return resolved
