"""The all-pair attention as a single differentiable operation, with its gradient written by hand.

Autograd would keep an (N, d) array for every product, quotient and broadcast of the formula. The backward pass here is four
matrix products and three elementwise passes. The tests compare the gradient with finite differences.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def attend(query: Tensor, key: Tensor, value: Tensor, scale: Tensor, own: Tensor | None = None) -> Tensor:
    """[V + c Q (K^T V)] / [1 + c Q (K^T 1)] per row and head (paper, "Simple Global Attention Network").

    Args:
        query: (heads, n, d), of all nodes or of a subset.
        key, value: (heads, N, d), of all nodes.
        scale: the scalar c, 1 / (|Q| |K| N) or 1 / N (see `AttentionSums`).
        own: the values of the nodes of `query`, if these are a subset.
    """
    return _Attention.apply(query, key, value, scale, own)  # type: ignore[no-any-return, no-untyped-call]  # torch's stub


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: Tensor, own: Tensor | None) -> Tensor:
        key_value = key.mT @ value  # (H, d, d)
        key_sum = key.sum(dim=1)[:, :, None]  # (H, d, 1)
        share = (query @ (key_sum * scale)).add_(1).reciprocal_()  # (H, n, 1): the reciprocal of the denominator
        out = torch.baddbmm(value if own is None else own, query, key_value * scale).mul_(share)  # (H, n, d)
        ctx.save_for_backward(query, key, value, scale, key_value, key_sum, share, out)
        ctx.all_query = own is None
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        query, key, value, scale, key_value, key_sum, share, out = ctx.saved_tensors
        numerator = gradient * share  # d loss / d [V + c Q S]
        denominator = torch.einsum("hnd,hnd->hn", numerator, out)[:, :, None].neg_()  # d loss / d [1 + c Q s]
        grad_key_value = query.mT @ numerator  # d loss / d (c S)
        grad_key_sum = query.mT @ denominator  # d loss / d (c s)
        grad_query = (numerator @ (key_value * scale).mT).addcmul_(denominator, (key_sum * scale).mT)
        grad_key = (value @ (grad_key_value * scale).mT).add_((grad_key_sum * scale).mT)
        grad_scale = (grad_key_value * key_value).sum() + (grad_key_sum * key_sum).sum()
        if ctx.all_query:
            return grad_query, grad_key, numerator.baddbmm_(key, grad_key_value * scale), grad_scale, None
        return grad_query, grad_key, key @ (grad_key_value * scale), grad_scale, numerator


def unit_rows(rows: Tensor, filler: float) -> Tensor:
    """Divides every row by its length, after exact zeros are replaced by `filler`."""
    # Looking for the smallest magnitude costs less than a mask, which is almost always empty.
    if rows.numel() and not rows.detach().abs().amin() > 0:
        rows = rows.masked_fill(rows == 0, filler)
    return _UnitRows.apply(rows)  # type: ignore[no-any-return, no-untyped-call]  # torch's stub


class _UnitRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        inverse = torch.linalg.vector_norm(rows, dim=-1, keepdim=True).reciprocal_()
        unit: Tensor = rows * inverse
        ctx.save_for_backward(unit, inverse)
        return unit

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """(g - u (u . g)) / length: only the part of g orthogonal to the row changes its direction."""
        unit, inverse = ctx.saved_tensors
        along = (unit * gradient).sum(dim=-1, keepdim=True)
        return torch.addcmul(gradient, unit, along, value=-1).mul_(inverse)
