"""Errors that callers of the mathematics can act on.

    SgformerError
    +-- ConfigError              a model setting is out of range or contradicts another
    +-- GraphError               features or edges that do not make a graph
    +-- UnknownNodeError         an id that names no node of the graph
    +-- NewNodeError             a question about new nodes that cannot be asked (`.item` says which)
    +-- SumsError                sums that do not belong together, or that hold no rows
    +-- WeightsError             tensors that are missing, unknown or of the wrong shape
    +-- NeighborhoodTooLarge     an exact answer would recompute more than the caller allows

Every message says what was found and what was expected.
"""

from __future__ import annotations


class SgformerError(ValueError):
    """Base of every error that this package raises about its input."""


class ConfigError(SgformerError):
    pass


class GraphError(SgformerError):
    """`row` is the node whose features are to blame, where one is."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class UnknownNodeError(SgformerError):
    """`node` is the id that no node has, or None where what was given is no list of ids."""

    def __init__(self, message: str, node: int | str | None = None) -> None:
        super().__init__(message)
        self.node = node


class SumsError(SgformerError):
    pass


class NewNodeError(SgformerError):
    """Raised for one new node of a question; `item` is its position, or None where no single node is to blame."""

    def __init__(self, message: str, item: int | None = None) -> None:
        super().__init__(message if item is None else f"new node {item}: {message}")
        self.message, self.item = message, item


class WeightsError(SgformerError):
    pass


class NeighborhoodTooLarge(SgformerError):  # noqa: N818  # public name: it says what is the case
    """The exact answer needs `size` neighbourhood entries and the caller allowed `limit`."""

    def __init__(self, item: int, size: int, limit: int) -> None:
        self.message = (
            f"an exact answer would recompute a neighbourhood of {size:,} entries, "
            f"the limit is {limit:,}; ask in frozen mode or raise the limit"
        )
        super().__init__(f"new node {item}: {self.message}")
        self.item = item
        self.size = size
        self.limit = limit
