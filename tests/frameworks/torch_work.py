"""Modules, hooks and own gradients of torch: functions that it calls from C++, also in the thread of a backward pass."""

import torch

import work
from stacks import described


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(context, value):
        torch.empty(described(), dtype=torch.uint8)
        return value * 2

    @staticmethod
    def backward(context, gradient):
        torch.empty(described(), dtype=torch.uint8)
        work.native()
        return gradient * 2


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())

    def forward(self, value):
        return Doubled.apply(self.layers(value)).sum()


NETWORK = Network()
NETWORK.layers[0].register_forward_hook(lambda *_: work.native())
torch.set_num_threads(2)


def handle(number):
    value = torch.ones(3, requires_grad=True)
    value.register_hook(lambda gradient: work.handle(number) * gradient)
    NETWORK(value).backward()
    return work.handle(number + 1)


handle(0), handle(1), handle(2), handle(3)
