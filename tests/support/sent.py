"""Values as executors get them."""

from typing import Any, TypeVar

from pyspark import cloudpickle

Value = TypeVar("Value")


def sent(value: Value) -> Value:
    """Through the pickling that Spark uses for readers."""
    data = cloudpickle.dumps(value)  # type: ignore[no-untyped-call]  # pyspark left this one out
    loaded: Any = cloudpickle.loads(data)
    return loaded  # type: ignore[no-any-return]  # it is what was sent
