"""What ``comparison.json`` holds: scores of runs by block, and the differences of all pairs."""

from __future__ import annotations

from pydantic import BaseModel, Field, model_validator

from gcnbatch.training.run_files import Number


class RunScores(BaseModel):
    """A run with its score of each block, their mean and standard deviation."""

    name: str
    model: str
    folder: str
    scores: list[Number]
    mean: Number
    std: Number | None


class Pair(BaseModel):
    """The difference of two runs: its own interval, the one that holds for all pairs at once, and a sentence."""

    first: str
    second: str
    difference: Number
    interval: tuple[Number, Number]
    joint_interval: tuple[Number, Number]
    p: Number | None
    verdict: str

    @property
    def shown(self) -> bool:
        """Whether a difference is shown: the joint interval leaves out 0."""
        low, high = self.joint_interval
        return low > 0 or high < 0


class ComparisonContent(BaseModel):
    """Scores and differences of runs; the file may be damaged.

    Parameters
    ----------
    metric : str
    level : float
        Confidence level of all intervals.
    method : str
        How the intervals were computed.
    runs : list of RunScores
    blocks : list of str
        Repeat and fold by name; "" for one split.
    pairs : list of Pair
    """

    metric: str
    level: Number
    method: str
    runs: list[RunScores] = Field(min_length=2)
    blocks: list[str] = Field(min_length=1)
    pairs: list[Pair]

    @model_validator(mode="after")
    def _has_every_score(self) -> ComparisonContent:
        if any(len(run.scores) != len(self.blocks) for run in self.runs):
            raise ValueError("a run has not one score per block")
        return self
