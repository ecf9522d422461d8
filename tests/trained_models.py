"""Networks that training_parity_test.py trains for ten steps; those of brought_models.py among them."""

import torch
import torchvision
from torch import nn
from torch.nn import functional as F

from brought_models import Bert, Mixture, Rotary, Seq2Seq

STEPS = 10
models = torchvision.models


class Gpt(nn.Module):
    """A GPT-2 of four layers, written out as its reference implementation is."""

    def __init__(self, vocabulary=211, width=64, heads=4, layers=4, positions=24):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.layers = nn.ModuleList()
        for _ in range(layers):
            self.layers.append(nn.ModuleDict({
                "norm1": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                "project": nn.Linear(width, width), "norm2": nn.LayerNorm(width),
                "up": nn.Linear(width, 4 * width), "down": nn.Linear(4 * width, width)}))
        self.norm = nn.LayerNorm(width)
        self.register_buffer("mask", torch.tril(torch.ones(positions, positions)) == 0)

    def forward(self, ids):
        batch, length = ids.shape
        x = self.tokens(ids) + self.positions(torch.arange(length))
        for layer in self.layers:
            q, k, v = layer["qkv"](layer["norm1"](x)).split(x.shape[-1], dim=2)
            q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
            scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
            scores = scores.masked_fill(self.mask[:length, :length], float("-inf"))
            y = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
            x = x + layer["project"](y)
            x = x + layer["down"](F.gelu(layer["up"](layer["norm2"](x))))
        logits = self.norm(x) @ self.tokens.weight.T
        return logits.reshape(-1, logits.shape[-1])


class LstmModel(nn.Module):
    def __init__(self, vocabulary=173, width=48):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, num_layers=2, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, ids):
        logits = self.out(self.lstm(self.tokens(ids))[0])
        return logits.reshape(-1, logits.shape[-1])


class Double(nn.Module):
    """Two convolutions with group norms."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, outputs, 3, padding=1) for c in (inputs, outputs))
        self.norm1, self.norm2 = nn.GroupNorm(4, outputs), nn.GroupNorm(2, outputs)

    def forward(self, x):
        x = F.silu(self.norm1(self.first(x)))
        return F.silu(self.norm2(self.second(x)))


class UNet(nn.Module):
    """A U-Net with group norms that labels every pixel."""

    def __init__(self, width=8, classes=3):
        super().__init__()
        self.down = nn.ModuleList([Double(3, width), Double(width, 2 * width)])
        self.middle = Double(2 * width, 4 * width)
        self.raise_ = nn.ModuleList([nn.ConvTranspose2d(4 * width, 2 * width, 2, 2),
                                     nn.ConvTranspose2d(2 * width, width, 2, 2)])
        self.up = nn.ModuleList([Double(4 * width, 2 * width), Double(2 * width, width)])
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        kept = []
        for part in self.down:
            kept.append(part(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.middle(x)
        for lift, part in zip(self.raise_, self.up):
            x = part(torch.cat([lift(x), kept.pop()], dim=1))
        return self.head(x)


class SlopedBlock(nn.Module):
    """A residual block with a slope a channel."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.slope1, self.slope2 = nn.PReLU(outputs), nn.PReLU()
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.short = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x):
        y = self.norm2(self.second(self.slope1(self.norm1(self.first(x)))))
        return self.slope2(y + self.short(x))


def sloped_resnet():
    return nn.Sequential(
        nn.Conv2d(3, 12, 3, 1, 1), nn.PReLU(12), SlopedBlock(12, 12, 1), SlopedBlock(12, 24, 2),
        SlopedBlock(24, 24, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10))


def vit():
    return models.VisionTransformer(image_size=32, patch_size=8, num_layers=3, num_heads=4,
                                    hidden_dim=64, mlp_dim=128, num_classes=10)


def vgg():
    """VGG-11 for small images: the exporter cannot enlarge by adaptive pooling."""
    module = models.vgg11(num_classes=10)
    module.avgpool = nn.AdaptiveAvgPool2d(1)
    module.classifier[0] = nn.Linear(512, 256)
    module.classifier[3] = nn.Linear(256, 256)
    module.classifier[6] = nn.Linear(256, 10)
    return module


def integers(batch, limit, *shape):
    return torch.randint(limit, (STEPS * batch, *shape))


def images(size, batch, classes=10, *label):
    return lambda: ({"input": torch.randn(STEPS * batch, 3, size, size)},
                    integers(batch, classes, *label))


def tokens(batch, length, vocabulary):
    return lambda: ({"input": integers(batch, vocabulary, length)},
                    integers(batch, vocabulary, length))


def segments(batch=4, length=12):
    mask = (torch.rand(STEPS * batch, length) < 0.8).long()
    mask[:, 0] = 1
    return ({"ids": integers(batch, 90, length), "segments": integers(batch, 3, length),
             "mask": mask}, integers(batch, 90, length))


def pairs(batch=4):
    return ({"source": integers(batch, 70, 9), "target": integers(batch, 60, 7)},
            integers(batch, 60, 7))


def rows(batch=4):
    return {"x": torch.randn(STEPS * batch, 6, 32)}, integers(batch, 12, 6)


# name: module, batch, inputs and labels
CASES = {
    "resnet18": (lambda: models.resnet18(num_classes=10), 4, images(64, 4)),
    "vgg11": (vgg, 2, images(32, 2)),
    "mobilenet_v2": (lambda: models.mobilenet_v2(num_classes=10), 4, images(64, 4)),
    "vit": (vit, 4, images(32, 4)),
    "gpt": (Gpt, 4, tokens(4, 24, 211)),
    "lstm": (LstmModel, 4, tokens(4, 16, 173)),
    "unet": (UNet, 4, images(16, 4, 3, 16, 16)),
    "bert": (lambda: Bert(words=90, width=48, heads=4, length=12, classes=90), 4, segments),
    "seq2seq": (lambda: Seq2Seq(source=70, target=60, width=40), 4, pairs),
    "rotary": (lambda: Rotary(words=100, width=48, heads=4, length=16), 4, tokens(4, 16, 100)),
    "mixture": (lambda: Mixture("scatter", width=32, classes=12), 4, rows),
    "sloped": (sloped_resnet, 4, images(16, 4)),
}


def loss_of(output, labels):
    """Classes along axis 1 of images, else along the last one."""
    if output.dim() != 4:
        output, labels = output.reshape(-1, output.shape[-1]), labels.reshape(-1)
    return F.cross_entropy(output, labels)
