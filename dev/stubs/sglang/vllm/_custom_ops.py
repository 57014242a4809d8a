"""Three of vLLM's kernels in plain torch; like those, they write into their arguments."""

import torch


def rotary_embedding(
    positions: torch.Tensor,
    query: torch.Tensor,
    key: "torch.Tensor | None",
    head_size: int,
    cos_sin_cache: torch.Tensor,
    is_neox: bool = True,
    *unused: object,
    **also_unused: object,
) -> None:
    """Turn each head of query and key by its position."""
    cos, sin = cos_sin_cache.index_select(0, positions.flatten().long()).chunk(2, dim=-1)
    tokens, half = cos.shape
    cos, sin = cos[:, None].float(), sin[:, None].float()
    for tensor in (query, key):
        if tensor is None:
            continue
        turned = tensor.view(tokens, -1, head_size)[..., : 2 * half]
        if is_neox:  # pairs are (i, i + half)
            first, second = turned.float().chunk(2, dim=-1)
        else:  # pairs are (2i, 2i + 1)
            first, second = turned[..., ::2].float(), turned[..., 1::2].float()
        pair = (first * cos - second * sin, second * cos + first * sin)
        result = torch.cat(pair, dim=-1) if is_neox else torch.stack(pair, dim=-1).flatten(-2)
        turned.copy_(result)


def rms_norm(out: torch.Tensor, tensor: torch.Tensor, weight: torch.Tensor, epsilon: float) -> None:
    """Scale to a root mean square of one, then by the weight."""
    wide = tensor.float()
    scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + epsilon)
    out.copy_((wide * scale).to(tensor.dtype) * weight)


def fused_add_rms_norm(
    tensor: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, epsilon: float
) -> None:
    """Add to the residual, and normalize the sum into the tensor."""
    residual.add_(tensor)
    rms_norm(tensor, residual, weight, epsilon)
