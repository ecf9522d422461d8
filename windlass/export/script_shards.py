# Replicas that share weights, gradients and the optimizer's state out between them (ZeRO 2 and 3), as FSDP does.


class Shards:
    """Weights, one after the other, of which this replica has an equal share."""

    def __init__(self, tensors):
        self.shapes = [tensor.shape for tensor in tensors]
        self.sizes = [tensor.numel() for tensor in tensors]
        flat = torch.cat([tensor.detach().reshape(-1) for tensor in tensors])
        self.sizes.append(-flat.numel() % REPLICAS)  # so that shares are equal
        flat = F.pad(flat, (0, self.sizes[-1]))
        self.share = nn.Parameter(flat.chunk(REPLICAS)[RANK].clone().to("cpu" if ON_HOST else DEVICE))
        self.flat = None

    def collect(self):
        """All of the weights on the device, until they are dropped."""
        if self.flat is None:
            share = self.share.detach().to(DEVICE, copy=REPLICAS == 1)
            self.flat = share if REPLICAS == 1 else share.new_empty(REPLICAS * share.numel())
            if REPLICAS > 1:
                torch.distributed.all_gather(list(self.flat.chunk(REPLICAS)), share)
        return self.flat

    def drop(self):
        self.flat = None

    def weights(self):
        """As tensors of their own, whose gradients go to the shares."""
        parts = Gather.apply(self.share, self).split(self.sizes)
        return [part.view(shape) for part, shape in zip(parts, self.shapes)]

    def place(self, tensor):
        """Where in the weights a tensor begins; None if it is something else."""
        if self.flat is None or tensor.dtype != self.flat.dtype:
            return None
        place = (tensor.data_ptr() - self.flat.data_ptr()) // tensor.element_size()
        return place if 0 <= place < self.flat.numel() else None


class Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, share, shards):
        ctx.shards = shards
        return shards.collect().detach()

    @staticmethod
    def backward(ctx, gradient):
        if ZERO == 3:
            ctx.shards.drop()
        if REPLICAS == 1:
            return gradient.to(ctx.shards.share.device), None
        parts = list((gradient / REPLICAS).chunk(REPLICAS))
        own = torch.empty_like(parts[RANK])
        if DEVICE.type == "cuda":
            torch.distributed.reduce_scatter(own, parts)
        else:  # Gloo has no such sum
            for owner, part in enumerate(parts):
                torch.distributed.reduce(part, owner)
            own.copy_(parts[RANK])
        return own.to(ctx.shards.share.device), None


class SharedOut(nn.Module):
    """A part of the network with its weights shared out. With ZeRO 3 they are there while the part computes, and gathered
    again for its backward pass; with ZeRO 2 they stay until the end of the step."""

    def __init__(self, part, action):
        super().__init__()
        self.part, self.action, self.names, self.own = part, action, part.names, part.own
        by_type = {}
        for name, weight in part.named_parameters(recurse=False):
            if weight.requires_grad and weight.numel():  # frozen ones stay whole
                by_type.setdefault(weight.dtype, []).append(name)
        self.groups = [(names, Shards([getattr(part, name) for name in names])) for names in by_type.values()]
        self.shares = nn.ParameterList([shards.share for _, shards in self.groups])
        for name in [name for names, _ in self.groups for name in names]:
            delattr(part, name)

    def forward(self, *inputs):
        used = [shards for _, shards in self.groups] + [value for value in inputs if isinstance(value, Shards)]
        for names, shards in self.groups:
            for name, weight in zip(names, shards.weights()):
                setattr(self.part, name, weight)
        inputs = [value.weights()[0] if isinstance(value, Shards) else value for value in inputs]
        # What is computed again gathers by itself.
        hooks = self.action == "offload" or (ZERO == 3 and self.action == "keep")
        with self.saving(used) if hooks else contextlib.nullcontext():
            results = self.part(*inputs)
        for name in [name for names, _ in self.groups for name in names]:
            delattr(self.part, name)
        if ZERO == 3:
            for shards in used:
                shards.drop()
        return results

    def saving(self, used):
        """Weights are not saved for the backward pass, but gathered again."""

        def pack(tensor):
            for shards in used:
                if (place := shards.place(tensor)) is not None:
                    return shards, tensor.size(), tensor.stride(), place
            return to_host(tensor) if self.action == "offload" else tensor

        def unpack(packed):
            if isinstance(packed, tuple) and isinstance(packed[0], Shards):
                return packed[0].collect().as_strided(*packed[1:])
            return from_host(packed)

        return saved_tensors_hooks(pack, unpack)


def prepare(model):
    model.shared = {}
    for name, weight in list(model.named_parameters(recurse=False)):
        if weight.requires_grad and weight.numel():
            model.shared[name] = Shards([weight])
            delattr(model, name)
            setattr(model, name, model.shared[name])
            model.register_parameter("share_of_" + name, model.shared[name].share)
    model.parts = nn.ModuleList([SharedOut(part, action) for part, action in zip(model.parts, model.actions)])
    for part in model.parts:
        part.part.to(DEVICE)
    shares = {id(shards.share) for shards in model.shared.values()}
    for tensor in [*model.parameters(recurse=False), *model.buffers(recurse=False)]:
        if id(tensor) not in shares:
            tensor.data = tensor.data.to(DEVICE)
    return model


def exchange(model, last):
    """Gradients go to their owners as soon as they are there."""
    return contextlib.nullcontext()


def clip(model):
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    square = sum(gradient.float().square().sum() for gradient in gradients).to(DEVICE)
    if REPLICAS > 1:
        torch.distributed.all_reduce(square)
    factor = (CLIP_NORM / (square.sqrt() + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))


def finish(model):
    """Weights have changed: what was gathered of them is out of date."""
    for part in model.parts:
        for _, shards in part.groups:
            shards.drop()
    for shards in model.shared.values():
        shards.drop()


def whole_weights(model):
    """Each weight by its name, for which all replicas have to call."""
    for part in model.parts:
        for names, shards in part.groups:
            for name, weight in zip(names, shards.weights()):
                setattr(part, name, weight.detach().cpu())
            shards.drop()
        for name in part.own:
            if hasattr(part.part, name):
                setattr(part, name, getattr(part.part, name))
    named = model.by_name()
    return {name: value.weights()[0] if isinstance(value, Shards) else value for name, value in named.items()}
