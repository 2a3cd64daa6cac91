"""Muon for the matrices inside the layers, AdamW for the embedding and the norms.

Muon steps along the orthogonalised momentum: every direction of a matrix learns at the same speed, which for a model of
this size means about a third fewer tokens to the same loss. Matrices of one shape are orthogonalised together, so that
the steps stay short.
"""

import torch


@torch.compile(dynamic=False)
def orthogonalised(stack):
    """The nearest semi-orthogonal matrices, approximately: five Newton-Schulz steps in bf16."""
    x = stack.bfloat16()
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)
    for _ in range(5):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * square @ square) @ x
    return (x.mT if tall else x).float()


class Muon:
    """Momentum, orthogonalised, with decoupled weight decay."""

    def __init__(self, weights, rate, momentum=0.95, decay=0.1):
        self.rate, self.momentum, self.decay = rate, momentum, decay
        by_shape = {}
        for weight in weights:
            by_shape.setdefault(tuple(weight.shape), []).append(weight)
        self.groups = [(group, torch.zeros(len(group), *shape, device=group[0].device)) for shape, group in by_shape.items()]

    @torch.no_grad()
    def step(self, scale):
        """One step at `scale` times the rate."""
        for group, velocity in self.groups:
            gradient = torch.stack([weight.grad for weight in group])
            velocity.lerp_(gradient, 1 - self.momentum)
            update = orthogonalised(gradient.lerp(velocity, self.momentum))
            rate = self.rate * scale
            # 0.2 makes a step as large as one of AdamW's, so that the two share one idea of a rate
            size = rate * 0.2 * max(velocity.shape[-2:]) ** 0.5
            for weight, change in zip(group, update):
                weight.mul_(1 - rate * self.decay).sub_(change, alpha=size)


class Optimizer:
    """Both, with one schedule."""

    def __init__(self, model, rate):
        matrices = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and "embed" not in name]
        others = [weight for name, weight in model.named_parameters() if weight.dim() != 2 or "embed" in name]
        self.weights = matrices + others
        self.muon = Muon(matrices, rate)
        self.rate = rate * 0.6
        self.adam = torch.optim.AdamW(others, lr=self.rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True)

    def step(self, scale):
        """One step of both."""
        self.adam.param_groups[0]["lr"] = self.rate * scale
        self.adam.step()
        self.muon.step(scale)
        for weight in self.weights:
            weight.grad = None
