"""Errors about the input of this package.

    SgformerError
    +-- ConfigError              a model setting is out of range or contradicts another
    +-- GraphError               features or edges that do not make a graph
    +-- UnknownNodeError         an id that is not in the graph
    +-- NewNodeError             an invalid request for new nodes (`item` is the new node at fault)
    +-- ChangeError              an invalid change of a graph (`row` is the node at fault)
    +-- SumsError                sums that cannot be combined, or that include no rows
    +-- WeightsError             tensors that are missing, unknown or of the wrong shape
    +-- NeighborhoodTooLarge     an exact answer would read more adjacency entries than the caller allows

Every message says what was found and what was expected.
"""

from __future__ import annotations


class SgformerError(ValueError):
    """The base of all errors here."""


class ConfigError(SgformerError):
    pass


class GraphError(SgformerError):
    """`row` is the node with invalid features, or None if the error is not about a node."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class UnknownNodeError(SgformerError):
    """`node` is the unknown id, or None if the input is not a list of ids."""

    def __init__(self, message: str, node: int | str | None = None) -> None:
        super().__init__(message)
        self.node = node


class ChangeError(SgformerError):
    """`row` is the node at fault, or None if the error is not about a single node."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


class SumsError(SgformerError):
    pass


class NewNodeError(SgformerError):
    """`item` is the position of the new node at fault, or None if the error is not about a single node."""

    def __init__(self, message: str, item: int | None = None) -> None:
        super().__init__(message if item is None else f"new node {item}: {message}")
        self.message, self.item = message, item


class WeightsError(SgformerError):
    pass


class NeighborhoodTooLarge(SgformerError):  # noqa: N818  # a public name
    """An exact answer needs `size` adjacency entries, and the caller allows `limit`."""

    def __init__(self, item: int, size: int, limit: int) -> None:
        self.message = (
            f"an exact answer would read {size:,} adjacency entries, "
            f"the limit is {limit:,}; use frozen mode or raise the limit"
        )
        super().__init__(f"new node {item}: {self.message}")
        self.item, self.size, self.limit = item, size, limit
