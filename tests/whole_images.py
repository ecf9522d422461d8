"""Networks of images and of points as people bring them, each as small as it gets; see whole_networks_test.py."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from whole_networks import bent, bits, classes, distance, network, noise, squares, uniform


def wave_features(x, count):
    """Sines and cosines of octaves, beside the numbers themselves."""
    return torch.cat([x] + [f(x * 2.0 ** i) for i in range(count) for f in (torch.sin, torch.cos)], -1)


class TimedBlock(nn.Module):
    """A residual block that is told the time, as scale and shift."""

    def __init__(self, into, out, time):
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(2, into), nn.GroupNorm(2, out)
        self.first, self.second = nn.Conv2d(into, out, 3, padding=1), nn.Conv2d(out, out, 3, padding=1)
        self.time = nn.Linear(time, 2 * out)
        self.short = nn.Conv2d(into, out, 1) if into != out else nn.Identity()

    def forward(self, x, time):
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        y = self.norm2(self.first(F.silu(self.norm1(x)))) * (1 + scale) + shift
        return self.short(x) + self.second(F.silu(y))


class LookAt(nn.Module):
    """Places of an image look at words."""

    def __init__(self, width, words, heads=2):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.kv = nn.Linear(words, 2 * width, bias=False)
        self.out = nn.Linear(width, width)

    def forward(self, x, words):
        batch, width, high, wide = x.shape
        rows = x.flatten(2).transpose(1, 2)
        split = lambda t: t.view(batch, -1, self.heads, width // self.heads).transpose(1, 2)  # noqa: E731
        k, v = self.kv(words).chunk(2, -1)
        scores = torch.einsum("bhid,bhjd->bhij", split(self.q(self.norm(rows))), split(k))
        y = torch.einsum("bhij,bhjd->bhid", (scores * (width // self.heads) ** -0.5).softmax(-1), split(v))
        rows = rows + self.out(y.transpose(1, 2).reshape(batch, -1, width))
        return rows.transpose(1, 2).reshape(batch, width, high, wide)


class Denoiser(nn.Module):
    def __init__(self, width=4, time=8):
        super().__init__()
        self.width, self.time = width, nn.Sequential(nn.Linear(time, time), nn.SiLU(), nn.Linear(time, time))
        self.begin = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([TimedBlock(width, width, time), TimedBlock(width, 2 * width, time)])
        self.shrink = nn.Conv2d(width, width, 3, 2, 1)
        self.middle, self.look = TimedBlock(2 * width, 2 * width, time), LookAt(2 * width, 5)
        self.up = nn.ModuleList([TimedBlock(4 * width, width, time), TimedBlock(2 * width, width, time)])
        self.end = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x, t, words, target):
        half = 4
        speeds = torch.exp(-math.log(1000) * torch.arange(half, dtype=torch.float32) / half).to(x.dtype)
        angles = t[:, None] * speeds[None]
        time = self.time(torch.cat([angles.sin(), angles.cos()], -1))
        x = self.begin(x)
        one = self.down[0](x, time)
        two = self.down[1](self.shrink(one), time)
        x = self.look(self.middle(two, time), words)
        x = self.up[0](torch.cat([x, two], 1), time)
        x = F.interpolate(x, scale_factor=2.0, mode="nearest")
        return squares(self.end(self.up[1](torch.cat([x, one], 1), time)), target)


network("denoiser", Denoiser, x=noise(3, 8, 8), t=uniform(), words=noise(5, 5), target=noise(3, 8, 8))


class ConvNext(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.stem = nn.Conv2d(3, width, 2, 2)
        self.parts = nn.ModuleList()
        for _ in range(2):
            part = nn.ModuleDict({"deep": nn.Conv2d(width, width, 7, padding=3, groups=width),
                                  "norm": nn.LayerNorm(width, eps=1e-6), "up": nn.Linear(width, 4 * width),
                                  "down": nn.Linear(4 * width, width)})
            part.register_parameter("gamma", nn.Parameter(0.3 * torch.ones(width)))
            self.parts.append(part)
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x)
        for part in self.parts:
            y = part["norm"](part["deep"](x).permute(0, 2, 3, 1))
            x = x + (part.gamma * part["down"](F.gelu(part["up"](y)))).permute(0, 3, 1, 2)
        return self.head(x.mean([-2, -1]))


network("convnext", ConvNext, x=noise(3, 8, 8), labels=classes(5), outside="cross-entropy")


class Radiance(nn.Module):
    """Colours along rays, from density: alpha compositing by running sums."""

    def __init__(self, width=12):
        super().__init__()
        self.first, self.second = nn.Linear(15, width), nn.Linear(width + 15, width)
        self.density, self.colour = nn.Linear(width, 1), nn.Linear(width + 9, 3)

    def forward(self, origins, ways, seen):
        depths = torch.linspace(0.1, 1.0, 6).to(origins.dtype)
        points = origins[:, None] + ways[:, None] * depths[:, None]
        features = wave_features(points, 2)
        y = F.relu(self.first(features))
        y = F.relu(self.second(torch.cat([y, features], -1)))
        density = F.softplus(self.density(y) - 1).squeeze(-1)
        looks = wave_features(F.normalize(ways, dim=-1), 1)[:, None].expand(-1, 6, -1)
        colours = torch.sigmoid(self.colour(torch.cat([y, looks], -1)))
        gaps = torch.cat([depths[1:] - depths[:-1], depths.new_full((1,), 0.5)])
        light = density * gaps
        passed = torch.exp(-torch.cat([torch.zeros_like(light[:, :1]), light[:, :-1].cumsum(-1)], -1))
        weights = passed * (1 - torch.exp(-light))
        image = (weights[..., None] * colours).sum(1) + (1 - weights.sum(1, keepdim=True))
        return squares(image, seen) + 0.01 * (weights + 1e-3).log().mean()


network("radiance", Radiance, origins=noise(3), ways=noise(3), seen=uniform(3))


class Inverted(nn.Module):
    """A bottleneck of EfficientNet: expanded, deep, squeezed and excited."""

    def __init__(self, into, out, stride):
        super().__init__()
        inner = 3 * into
        self.short = stride == 1 and into == out
        self.expand, self.deep = nn.Conv2d(into, inner, 1, bias=False), nn.Conv2d(
            inner, inner, 3, stride, 1, groups=inner, bias=False)
        self.project = nn.Conv2d(inner, out, 1, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(c, eps=1e-3, momentum=0.01) for c in (inner, inner, out))
        self.squeeze, self.excite = nn.Conv2d(inner, 2, 1), nn.Conv2d(2, inner, 1)

    def forward(self, x):
        y = F.silu(self.norms[0](self.expand(x)))
        y = F.silu(self.norms[1](self.deep(y)))
        y = y * torch.sigmoid(self.excite(F.silu(self.squeeze(y.mean((2, 3), keepdim=True)))))
        y = self.norms[2](self.project(y))
        return x + y if self.short else y


network("efficient", lambda: nn.Sequential(
    nn.Conv2d(3, 4, 3, 2, 1, bias=False), nn.BatchNorm2d(4), nn.SiLU(), Inverted(4, 4, 1), Inverted(4, 6, 2),
    nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)), x=noise(3, 12, 12), labels=classes(4),
    outside="cross-entropy")


class MobileVit(nn.Module):
    """Attention among the pixels that have the same place in their patches."""

    def __init__(self, width=8):
        super().__init__()
        self.local, self.into = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 1, bias=False)
        self.part = nn.ModuleDict({"norm": nn.LayerNorm(width), "qkv": nn.Linear(width, 3 * width),
                                   "out": nn.Linear(width, width)})
        self.back, self.fuse = nn.Conv2d(width, width, 1), nn.Conv2d(2 * width, 4, 3, padding=1)

    def forward(self, x):
        kept = F.silu(self.local(x))
        y = self.into(kept)
        batch, width, high, wide = y.shape
        y = y.reshape(batch * width * (high // 2), 2, wide // 2, 2).transpose(1, 2)
        y = y.reshape(batch, width, high * wide // 4, 4).transpose(1, 3).reshape(batch * 4, -1, width)
        q, k, v = self.part["qkv"](self.part["norm"](y)).chunk(3, -1)
        y = y + self.part["out"](torch.softmax(q @ k.transpose(1, 2) / math.sqrt(width), -1) @ v)
        y = y.reshape(batch, 4, -1, width).transpose(1, 3).reshape(batch * width * (high // 2), wide // 2, 2, 2)
        y = y.transpose(1, 2).reshape(batch, width, high, wide)
        return self.fuse(torch.cat([kept, self.back(y)], 1)).flatten(2).mean(2)


network("mobile_vit", MobileVit, x=noise(3, 6, 8), labels=classes(4), outside="cross-entropy")


class TiedConvolutions(nn.Module):
    """An autoencoder whose two halves share their weights: one turned, one transposed."""

    def __init__(self):
        super().__init__()
        self.filters = nn.Parameter(torch.randn(4, 2, 3, 3) * 0.3)
        self.dense = nn.Parameter(torch.randn(5, 64) * 0.1)
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(n)) for n in (4, 5, 64, 2))

    def forward(self, x):
        y = torch.tanh(F.conv2d(x, self.filters, self.biases[0], stride=2, padding=1))
        shape = y.shape
        code = torch.sigmoid(F.linear(y.flatten(1), self.dense, self.biases[1]))
        y = torch.tanh(F.linear(code, self.dense.t(), self.biases[2])).view(shape)
        y = F.conv_transpose2d(y, self.filters, self.biases[3], stride=2, padding=1, output_padding=1)
        return F.binary_cross_entropy_with_logits(y, torch.sigmoid(x)) + 1e-2 * code.mean(0).log().sum()


network("tied_autoencoder", TiedConvolutions, x=noise(2, 8, 8))


class Variational(nn.Module):
    """The noise is an input, so that both compute with the same."""

    def __init__(self):
        super().__init__()
        self.code, self.decode = nn.Sequential(nn.Linear(8, 10), nn.ELU(), nn.Linear(10, 6)), nn.Sequential(
            nn.Linear(3, 10), nn.ELU(), nn.Linear(10, 8))

    def forward(self, x, draw):
        mean, log_variance = self.code(x).chunk(2, dim=1)
        z = mean + torch.exp(0.5 * log_variance) * draw
        apart = -0.5 * torch.mean(torch.sum(1 + log_variance - mean.pow(2) - log_variance.exp(), dim=1))
        return (self.decode(z) - x).pow(2).sum() / x.size(0) + 0.5 * apart


network("variational", Variational, x=noise(8), draw=noise(3))


class Quantised(nn.Module):
    """Nearest rows of a code book, without a straight-through estimator."""

    def __init__(self):
        super().__init__()
        self.code, self.book, self.decode = nn.Linear(6, 8), nn.Embedding(5, 4), nn.Linear(8, 6)

    def forward(self, x):
        z = self.code(x).view(-1, 2, 4)
        flat = z.reshape(-1, 4)
        far = (flat ** 2).sum(1, keepdim=True) + (self.book.weight ** 2).sum(1) - 2 * flat @ self.book.weight.t()
        near = far.argmin(1)
        rows = self.book(near).view(z.shape)
        return squares(self.decode(rows.flatten(1)), x) + squares(rows, z)


network("quantised", Quantised, x=noise(6))


class Upscaler(nn.Module):
    """Dense connections, channels to pixels, and a smooth copy of the input."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 5, padding=2)
        self.dense = nn.ModuleList(nn.Conv2d(4 * (i + 1), 4, 3, padding=1) for i in range(2))
        self.last = nn.Conv2d(12, 4, 3, padding=1)

    def forward(self, x, target):
        y = [torch.tanh(self.first(x))]
        for part in self.dense:
            y.append(F.leaky_relu(part(torch.cat(y, 1)), 0.2))
        big = F.pixel_shuffle(self.last(torch.cat(y, 1)), 2)
        big = big + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        rough = (big[:, :, 1:] - big[:, :, :-1]).abs().mean() + (big[..., 1:] - big[..., :-1]).abs().mean()
        return torch.sqrt((big - target) ** 2 + 1e-6).mean() + 0.1 * rough


network("upscaler", Upscaler, x=noise(1, 5, 6), target=noise(1, 10, 12))


class Alike(nn.Module):
    """Structural likeness of two images under a window of the normal distribution."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.PReLU(4), nn.Conv2d(4, 2, 3, padding=1))
        row = torch.exp(-torch.arange(-2.0, 3.0) ** 2 / 2)
        window = torch.outer(row, row)
        self.register_buffer("window", (window / window.sum()).expand(2, 1, 5, 5).contiguous())

    def forward(self, x, target):
        def smooth(image):
            return F.conv2d(image, self.window, padding=2, groups=2)
        y = torch.sigmoid(self.body(x))
        m, n = smooth(y), smooth(target)
        v, w, both = smooth(y * y) - m * m, smooth(target * target) - n * n, smooth(y * target) - m * n
        found = ((2 * m * n + 0.01) * (2 * both + 0.03)) / ((m * m + n * n + 0.01) * (v + w + 0.03))
        return 1 - found.mean()


# That the window is none, windlass sees; to be told as well does no harm.
network("structural_likeness", Alike, x=noise(2, 7, 7), target=uniform(2, 7, 7), told=("window",))


class StyleTransfer(nn.Module):
    """Means and deviations of one image put on another; a loss of Gram matrices."""

    def __init__(self):
        super().__init__()
        self.code, self.decode = nn.Conv2d(3, 6, 3, padding=1, padding_mode="reflect"), nn.Conv2d(6, 3, 3, padding=1)

    def forward(self, content, style):
        def figures(y):
            y = y.flatten(2)
            return y.mean(2)[:, :, None, None], (y.var(2) + 1e-5).sqrt()[:, :, None, None]

        def gram(y):
            y = y.flatten(2)
            return torch.bmm(y, y.transpose(1, 2)) / y.shape[1] / y.shape[2]
        a, b = F.relu(self.code(content)), F.relu(self.code(style))
        (m, s), (n, t) = figures(a), figures(b)
        made = self.decode((a - m) / s * t + n)
        again = F.relu(self.code(made))
        return squares(gram(again), gram(b)) + distance(again, a)


network("style_transfer", StyleTransfer, content=noise(3, 6, 6), style=noise(3, 6, 6))


class Detector(nn.Module):
    """Learned queries look at an image; classes and boxes against a fixed matching."""

    def __init__(self, width=8, queries=4):
        super().__init__()
        self.backbone, self.places = nn.Conv2d(3, width, 4, 4), nn.Parameter(torch.rand(1, width, 3, 3))
        self.queries = nn.Embedding(queries, width)
        self.own = nn.MultiheadAttention(width, 2, batch_first=True)
        self.look = nn.MultiheadAttention(width, 2, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.kinds, self.boxes = nn.Linear(width, 4), nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4))

    def forward(self, x, kinds, boxes):
        memory = (self.backbone(x) + self.places).flatten(2).permute(0, 2, 1)
        q = self.queries.weight.unsqueeze(0).repeat(x.shape[0], 1, 1)
        y = self.norms[0](q + self.own(q, q, q, need_weights=False)[0])
        y = self.norms[1](y + self.look(y, memory, memory, need_weights=False)[0])
        found = torch.sigmoid(self.boxes(y))
        weight = torch.tensor([1.0, 1.0, 1.0, 0.1], dtype=x.dtype)
        loss = F.cross_entropy(self.kinds(y).transpose(1, 2), kinds, weight)
        corners = lambda b: torch.cat([b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2], -1)  # noqa: E731
        a, b = corners(found), corners(boxes)
        area = lambda c: (c[..., 2] - c[..., 0]) * (c[..., 3] - c[..., 1])  # noqa: E731
        inner = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0)
        common = inner[..., 0] * inner[..., 1]
        union = area(a) + area(b) - common
        outer = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).clamp(min=0)
        outer = outer[..., 0] * outer[..., 1]
        overlap = common / (union + 1e-6) - (outer - union) / (outer + 1e-6)
        return loss + 5 * distance(found, boxes) + 2 * (1 - overlap).mean()


network("detector", Detector, x=noise(3, 12, 12), kinds=classes(4, 4), boxes=uniform(4, 4))


class PointCloud(nn.Module):
    """Points turned by a matrix of their own, and the largest of each feature; edges to the nearest points."""

    def __init__(self, width=6, near=3):
        super().__init__()
        self.near = near
        self.turn = nn.Sequential(nn.Conv1d(3, width, 1), nn.ReLU(), nn.Conv1d(width, width, 1))
        self.matrix, self.edge, self.head = nn.Linear(width, 9), nn.Conv2d(6, width, 1, bias=False), nn.Linear(width, 4)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x, kinds):
        batch, _, count = x.shape
        one = torch.eye(3, dtype=x.dtype)
        turn = self.matrix(self.turn(x).max(2)[0]).view(-1, 3, 3) + one
        x = torch.bmm(x.transpose(2, 1), turn).transpose(2, 1)
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        square = (x ** 2).sum(1, keepdim=True)
        nearest = (-square - inner - square.transpose(2, 1)).topk(self.near, dim=-1)[1]
        nearest = (nearest + torch.arange(batch).view(-1, 1, 1) * count).view(-1)
        rows = x.transpose(2, 1).contiguous()
        others = rows.view(batch * count, -1)[nearest, :].view(batch, count, self.near, 3)
        rows = rows.view(batch, count, 1, 3).repeat(1, 1, self.near, 1)
        edges = torch.cat([others - rows, rows], 3).permute(0, 3, 1, 2)
        y = F.leaky_relu(self.norm(self.edge(edges)), 0.2).max(-1)[0].max(-1)[0]
        apart = (torch.bmm(turn, turn.transpose(1, 2)) - one).pow(2).sum((1, 2)).mean()
        return F.cross_entropy(self.head(y), kinds) + 0.01 * apart


network("point_cloud", PointCloud, x=noise(3, 7), kinds=classes(4))


class Branches(nn.Module):
    """Selective kernels, attention over channels and places, an inverted pyramid: vision blocks in a row."""

    def __init__(self, width=4):
        super().__init__()
        self.kernels = nn.ModuleList(nn.Conv2d(width, width, 3, padding=d, dilation=d, groups=2) for d in (1, 2))
        self.squeeze, self.choose = nn.Linear(width, 3), nn.Linear(3, 2 * width)
        self.shared = nn.Sequential(nn.Conv2d(width, 2, 1), nn.ReLU(), nn.Conv2d(2, width, 1))
        self.where, self.near = nn.Conv2d(2, 1, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1, bias=False)
        self.side, self.out = nn.Conv2d(2 * width, width, 1), nn.Conv2d(width, 3, 1)

    def forward(self, x):
        both = torch.stack([part(x) for part in self.kernels], 1)
        s = both.sum(1).mean((-2, -1))
        weights = self.choose(F.relu(self.squeeze(s))).view(x.shape[0], 2, -1).softmax(1)
        x = (both * weights[..., None, None]).sum(1)
        x = x * torch.sigmoid(self.shared(F.adaptive_avg_pool2d(x, 1)) + self.shared(F.adaptive_max_pool2d(x, 1)))
        x = x * torch.sigmoid(self.where(torch.cat([x.mean(1, keepdim=True), x.max(1, keepdim=True)[0]], 1)))
        y = self.near(x.mean((2, 3)).unsqueeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        x = x * torch.sigmoid(y).expand_as(x)
        small = F.avg_pool2d(x, 2)
        x = self.side(torch.cat([x, F.interpolate(small, size=x.shape[-2:], mode="bilinear", align_corners=False)], 1))
        high, wide = x.shape[-2:]
        shuffled = x.view(x.shape[0], 2, -1, high, wide).transpose(1, 2).contiguous().view(x.shape[0], -1, high, wide)
        return self.out(shuffled)


network("vision_blocks", Branches, x=noise(4, 6, 6), labels=classes(3, 6, 6), outside="cross-entropy")


class OwnKernels(nn.Module):
    """Weights made for each sample: mixed from experts, and from the place (involution)."""

    def __init__(self, width=4):
        super().__init__()
        self.experts, self.route = nn.Parameter(torch.randn(3, 5, width, 3, 3) * 0.3), nn.Linear(width, 3)
        self.kernel = nn.Conv2d(5, 9, 1)

    def forward(self, x, target):
        batch, width, high, wide = x.shape
        route = torch.sigmoid(self.route(x.mean((2, 3))))
        w = torch.matmul(route, self.experts.view(3, -1)).view(batch * 5, width, 3, 3)
        y = F.conv2d(x.reshape(1, batch * width, high, wide), w, padding=1, groups=batch).view(batch, 5, high, wide)
        kernel = self.kernel(y).view(batch, 1, 9, high, wide)
        windows = F.unfold(y, 3, padding=1).view(batch, 5, 9, high, wide)
        return bent((kernel * windows).sum(2), target)


network("own_kernels", OwnKernels, x=noise(4, 5, 5), target=noise(5, 5, 5))


class ConvLstm(nn.Module):
    def __init__(self, width=3):
        super().__init__()
        self.width, self.gates = width, nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.peep, self.out = nn.Parameter(torch.randn(3, width, 1, 1) * 0.3), nn.Conv2d(width, 1, 1)

    def forward(self, frames):
        state = cell = frames.new_zeros(frames.shape[0], self.width, *frames.shape[-2:])
        found = []
        for t in range(frames.shape[1] - 1):
            i, f, g, o = self.gates(torch.cat([frames[:, t], state], 1)).chunk(4, 1)
            cell = torch.sigmoid(f + self.peep[0] * cell + 1) * cell + torch.sigmoid(
                i + self.peep[1] * cell) * torch.tanh(g)
            state = torch.sigmoid(o + self.peep[2] * cell) * torch.tanh(cell)
            found.append(self.out(state))
        return squares(torch.stack(found, 1), frames[:, 1:])


network("conv_lstm", ConvLstm, frames=noise(4, 1, 4, 4))


class Bytes(nn.Module):
    """Images as files have them: bytes, channels last."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.48, 0.46, 0.41]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.23, 0.22, 0.25]).view(1, 3, 1, 1))
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(36, 4))

    def forward(self, image):
        x = image.permute(0, 3, 1, 2).to(self.body[0].weight.dtype) / 255
        return self.body((x - self.mean) / self.std)


network("bytes", Bytes, image=classes(256, 8, 8, 3), labels=classes(4), outside="cross-entropy")


class Segmenter(nn.Module):
    """Pyramid pooling, a decoder with a skip, and the losses of Dice, Tversky and Lovasz."""

    def __init__(self, width=4):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, width, 3, padding=1), nn.Conv2d(width, width, 3, 2, 1)
        self.pools = nn.ModuleList(nn.Conv2d(width, 2, 1) for _ in range(2))
        self.mix, self.head = nn.Conv2d(width + 4, width, 3, padding=2, dilation=2), nn.Conv2d(2 * width, 1, 1)

    def forward(self, x, mask):
        one = F.relu(self.one(x))
        two = F.relu(self.two(one))
        pools = [F.interpolate(part(F.adaptive_avg_pool2d(two, size)), size=two.shape[2:], mode="bilinear",
                               align_corners=True) for part, size in zip(self.pools, (1, 2))]
        y = F.interpolate(self.mix(torch.cat([two, *pools], 1)), scale_factor=2, mode="bilinear", align_corners=True)
        scores = self.head(torch.cat([y, one], 1)).flatten(1)
        mask = mask.flatten(1)
        p = torch.sigmoid(scores)
        hit, wrong, missed = (p * mask).sum(1), (p * (1 - mask)).sum(1), ((1 - p) * mask).sum(1)
        tversky = 1 - ((hit + 1) / (hit + 0.3 * wrong + 0.7 * missed + 1)).mean()
        errors, order = torch.sort(1 - scores * (2 * mask - 1), dim=1, descending=True)
        sorted_mask = mask.gather(1, order)
        inside = sorted_mask.sum(1, keepdim=True) - sorted_mask.cumsum(1)
        outside = sorted_mask.sum(1, keepdim=True) + (1 - sorted_mask).cumsum(1)
        jaccard = 1 - inside / outside
        slope = torch.cat([jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]], 1)
        return tversky + (F.relu(errors) * slope).sum(1).mean()


network("segmenter", Segmenter, x=noise(3, 8, 8), mask=bits(1, 8, 8))
network("siamese", lambda: Siamese(), anchor=noise(6), near=noise(6), far=noise(6))


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, anchor, near, far):
        a, b, c = self.body(anchor), self.body(near), self.body(far)
        far_off = lambda x, y: ((x - y).abs() + 1e-6).pow(2).sum(1).sqrt()  # noqa: E731
        return F.relu(far_off(a, b) - far_off(a, c) + 0.7).mean()


class Towers(nn.Module):
    """Two encoders whose pairs are the classes of the batch, with a learned temperature."""

    def __init__(self):
        super().__init__()
        self.image, self.text = nn.Sequential(nn.Flatten(), nn.Linear(27, 6)), nn.Embedding(20, 6)
        self.scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))

    def forward(self, image, text):
        a = F.normalize(self.image(image), dim=-1)
        b = F.normalize(self.text(text).mean(1), dim=-1)
        logits = self.scale.exp().clamp(max=20) * a @ b.t()
        pairs = torch.arange(a.shape[0])
        return (F.cross_entropy(logits, pairs) + F.cross_entropy(logits.t(), pairs)) / 2


network("towers", Towers, image=noise(3, 3, 3), text=classes(20, 4))


class Faces(nn.Module):
    """Angles between features and classes, with a margin at the class that is meant."""

    def __init__(self):
        super().__init__()
        self.body, self.centres = nn.Linear(6, 5), nn.Parameter(torch.randn(7, 5))

    def forward(self, x, who):
        likeness = F.linear(F.normalize(self.body(x)), F.normalize(self.centres)).clamp(-0.99, 0.99)
        meant = torch.zeros_like(likeness).scatter(1, who.view(-1, 1), 1.0)
        wide = torch.cos(torch.acos(likeness) + 0.3)
        return F.cross_entropy(8 * (meant * wide + (1 - meant) * likeness), who)


network("faces", Faces, x=noise(6), who=classes(7))
network("anchors", lambda: Anchors(), x=noise(3, 4, 4), wanted=bits(3, 4, 4), boxes=uniform(3, 4, 4, 4))


class Anchors(nn.Module):
    """A one-stage head: channels to anchors, boxes where there is something, a focal loss."""

    def __init__(self):
        super().__init__()
        self.head = nn.Conv2d(3, 15, 1)
        self.register_buffer("anchors", torch.tensor([[1.0, 2.0], [2.0, 1.0], [3.0, 3.0]]))

    def forward(self, x, wanted, boxes):
        batch, _, high, wide = x.shape
        y = self.head(x).view(batch, 3, 5, high, wide).permute(0, 1, 3, 4, 2)
        grid = torch.stack(torch.meshgrid(torch.arange(high), torch.arange(wide), indexing="ij")[::-1], -1)
        centre = (torch.sigmoid(y[..., :2]) + grid.to(x.dtype)) / high
        size = torch.exp(y[..., 2:4].clamp(max=4)) * self.anchors.view(1, 3, 1, 1, 2) / high
        p = torch.sigmoid(y[..., 4])
        right = p * wanted + (1 - p) * (1 - wanted)
        focal = F.binary_cross_entropy_with_logits(y[..., 4], wanted, reduction="none") * (1 - right) ** 2
        apart = ((torch.cat([centre, size], -1) - boxes) ** 2).sum(-1) * wanted
        return focal.mean() + apart.sum() / wanted.sum().clamp(min=1)


class Flow(nn.Module):
    """Coupling layers under masks, an invertible scale, and the likelihood of what comes out."""

    def __init__(self, width=6):
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(width, 8), nn.Tanh(), nn.Linear(8, 2 * width))
                                   for _ in range(2))
        self.log_scale, self.shift = nn.Parameter(torch.zeros(1, width)), nn.Parameter(torch.zeros(1, width))
        self.register_buffer("mask", (torch.arange(width) % 2).float())

    def forward(self, x):
        z, volume = (x + self.shift) * self.log_scale.exp(), self.log_scale.sum()
        for i, part in enumerate(self.parts):
            mask = self.mask if i % 2 else 1 - self.mask
            s, t = part(z * mask).chunk(2, 1)
            s = torch.tanh(s) * (1 - mask)
            z = z * mask + (1 - mask) * (z * torch.exp(s) + t)
            volume = volume + s.sum(1)
        return -(-0.5 * (z ** 2 + math.log(2 * math.pi)).sum(1) + volume).mean()


network("flow", Flow, x=noise(6))
network("sirens", lambda: Sirens(), x=uniform(2), value=noise(1))


class Sirens(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 8), nn.Linear(8, 8), nn.Linear(8, 1)])

    def forward(self, x, value):
        y = torch.sin(10 * self.layers[0](x))
        y = torch.sin(3 * self.layers[1](y)) + torch.exp(-y ** 2)
        low, high = 0.1, 0.9
        error = value - self.layers[2](y)
        return sum(torch.max((q - 1) * error, q * error).mean() for q in (low, 0.5, high)) / 3
