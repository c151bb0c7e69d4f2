"""The learned second opinion: a linear ranker over the same observations, stored as plain JSON numbers.

Fitted by ``bench/faultlab`` with scikit-learn's logistic regression; at run time it is one matrix product, without
scikit-learn or pickle.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.attribution.observations import OBSERVATIONS
from holdfast.debug.detectors.registry import known_failures
from holdfast.errors import ConfigError

__all__ = ["LearnedRanker", "feature_names", "features_of"]

Array = NDArray[np.float64]

FAILURE = "failure:"
"""Prefix of inputs that are failures."""


def feature_names() -> tuple[str, ...]:
    """Return the input names of a new ranker: every observation, then every known failure."""
    return (*OBSERVATIONS, *(f"{FAILURE}{failure.name}" for failure in known_failures()))


def features_of(names: Sequence[str], failures: Sequence[str], seen: Mapping[str, float]) -> Array:
    """Return the values of these inputs for one story: its failures and what was observed."""
    present = {f"{FAILURE}{failure}": 1.0 for failure in failures}
    return np.asarray([present.get(name, seen.get(name, 0.0)) for name in names], dtype=np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class LearnedRanker:
    """Weights of a softmax over causes. Observations added after it was fitted are ignored."""

    features: tuple[str, ...]
    causes: tuple[str, ...]
    weights: Array
    bias: Array

    def rank(self, failures: Sequence[str], seen: Mapping[str, float]) -> dict[str, float]:
        """Return the probability of every cause that the ranker knows."""
        scores = self.weights @ features_of(self.features, failures, seen) + self.bias
        scores = np.exp(scores - scores.max())
        return dict(zip(self.causes, (scores / scores.sum()).tolist(), strict=True))

    @classmethod
    def load(cls, path: Path | None = None) -> LearnedRanker:
        """Read the weights that ship with holdfast, or those in a file.

        Raises:
            ConfigError: the file is not a ranker, or was fitted on different observations.
        """
        try:
            if path is None:
                text = resources.files(__package__).joinpath("ranker.json").read_text("utf-8")
            else:
                text = path.read_text(encoding="utf-8")
            body = json.loads(text)
            weights = np.asarray(body["weights"], dtype=np.float64)
            bias = np.asarray(body["bias"], dtype=np.float64)
            causes = tuple(str(cause) for cause in body["causes"])
            features = tuple(str(name) for name in body["features"])
            unknown = [name for name in features if name not in OBSERVATIONS and not name.startswith(FAILURE)]
            if unknown or weights.shape != (len(causes), len(features)):
                raise ValueError("fitted on different observations")
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ConfigError(f"not a ranker: {error}", file=str(path), hint="fit one with bench/faultlab") from error
        return cls(features, causes, weights, bias)
