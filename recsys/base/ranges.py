"""Ranges of numbers: of the keys of schemas, and of the parameters of models and losses.

def __init__(self, features: FeatureSpec, dim: Width = 16, layers: Annotated[int, Field(ge=1)] = 2) -> None:
"""

from typing import Annotated

from pydantic import AfterValidator, Field

from recsys.base.durations import check_age

FLOAT32_MAX = 3.4e38
MAX_INT = 2**31 - 1
MAX_GRADE = 30  # of rows of a group: gains of NDCG, 2^grade - 1, fit into float32, and LightGBM's end here

Count = Annotated[int, Field(ge=1, le=MAX_INT)]
Counts = Annotated[list[Count], Field(min_length=1)]
Natural = Annotated[int, Field(ge=0, le=MAX_INT)]
Width = Annotated[int, Field(ge=1, le=2**16)]  # width of a layer or of an embedding
Depth = Annotated[int, Field(ge=1, le=2**10)]  # number of layers, blocks or heads
Length = Annotated[int, Field(ge=1, le=2**20)]  # of a list of items
Share = Annotated[float, Field(ge=0, lt=1)]  # of values that dropout removes
Part = Annotated[float, Field(ge=0, le=1)]  # from 0 to 1
Age = Annotated[str | float, AfterValidator(check_age)]  # 7d, 36h, or a number
Fraction = Annotated[float, Field(gt=0, lt=1)]  # above 0 and below 1
Deviation = Annotated[float, Field(ge=0)]  # standard deviation of initial weights
