"""Types of the numbers in a description."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(gt=0)]
Positive = Annotated[float, Field(gt=0)]
