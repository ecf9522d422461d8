# What does not depend on the model: helpers, data, and the loop.


def attention(q, k, v, mask, scale, causal, window, dropout):
    groups = q.shape[1] // k.shape[1]
    if groups > 1:
        k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = scale * (q @ k.transpose(-1, -2))
    if mask is not None:
        scores = scores + mask
    if causal:
        rows, columns = q.shape[-2], k.shape[-2]
        ahead = torch.arange(columns, device=q.device) - torch.arange(rows, device=q.device)[:, None] - (columns - rows)
        hidden = ahead > 0
        if window > 0:
            hidden = hidden | (ahead <= -window)
        scores = scores.masked_fill(hidden, -math.inf)
    return F.dropout(torch.softmax(scores, -1), dropout, dropout > 0) @ v


def rms_norm(x, scale, axis, epsilon, offset):
    axes = tuple(range(axis, x.dim()))
    normal = x * torch.rsqrt(x.square().mean(axes, keepdim=True) + epsilon)
    return normal if scale is None else normal * (scale + offset)


def rotary(x, theta, dims, interleaved):
    angles = torch.arange(x.shape[-2], device=x.device)[:, None] * theta ** (-torch.arange(0, dims, 2, device=x.device) / dims)
    cos, sin = torch.cos(angles).to(x.dtype), torch.sin(angles).to(x.dtype)
    turned, rest = x[..., :dims], x[..., dims:]
    a, b = (turned[..., 0::2], turned[..., 1::2]) if interleaved else turned.chunk(2, -1)
    a, b = a * cos - b * sin, a * sin + b * cos
    turned = torch.stack((a, b), -1).flatten(-2) if interleaved else torch.cat((a, b), -1)
    return torch.cat((turned, rest), -1)


def batch_norm(x, mean, variance, scale, bias, momentum, epsilon):
    """With statistics of the whole batch, replicas together."""
    if not torch.distributed.is_initialized():
        return F.batch_norm(x, mean, variance, scale, bias, True, momentum, epsilon)
    total = torch.distributed.nn.all_reduce
    axes, shape = [0, *range(2, x.dim())], [1, -1] + [1] * (x.dim() - 2)
    count = x.numel() // x.shape[1] * torch.distributed.get_world_size()
    average = total(x.sum(axes)) / count
    centred = x - average.reshape(shape)
    spread = total(centred.square().sum(axes)) / count
    with torch.no_grad():
        mean.lerp_(average, momentum)
        variance.lerp_(spread * (count / max(1, count - 1)), momentum)
    normal = centred * torch.rsqrt(spread + epsilon).reshape(shape)
    return normal * scale.reshape(shape) + bias.reshape(shape)


def gather(x, index, axis):
    index = torch.where(index < 0, index + x.shape[axis], index)
    return x.index_select(axis, index.reshape(-1)).reshape(x.shape[:axis] + index.shape + x.shape[axis:][1:])


def recurrent(layer, x, weights, again, bias, hidden, cell, onnx_order, both, reverse):
    gates = 4 if layer is torch.lstm else 3
    order = list(range(gates)) if not onnx_order else [0, 2, 3, 1] if gates == 4 else [1, 0, 2]

    def ordered(tensor):
        parts = tensor.chunk(gates)
        return torch.cat([parts[gate] for gate in order])

    parameters = []
    for direction in range(weights.shape[0]):
        parameters += [ordered(weights[direction]), ordered(again[direction])]
        if bias is not None:
            parameters += [ordered(part) for part in bias[direction].chunk(2)]
    zeros = x.new_zeros(weights.shape[0], x.shape[1], again.shape[-1])
    hidden, cell = (zeros if state is None else state for state in (hidden, cell))
    x = x.flip(0) if reverse else x
    state = (hidden, cell) if gates == 4 else hidden
    y, *last = layer(x, state, parameters, bias is not None, 1, 0.0, True, both, False)
    y = y.reshape(x.shape[0], x.shape[1], weights.shape[0], -1).transpose(1, 2)
    return (y.flip(0) if reverse else y, *last)


def route(logits, top_k, renormalize):
    chosen = torch.topk(logits, top_k).indices
    weights = torch.softmax(logits, -1).gather(-1, chosen)
    return weights / weights.sum(-1, keepdim=True) if renormalize else weights, chosen


def grouped_linear(x, weights, chosen):
    """Each row of a token times the weights of an expert that was chosen for it."""
    rows = x if x.dim() == 3 else x[:, None].expand(-1, chosen.shape[1], -1)
    order = torch.argsort(chosen.reshape(-1), stable=True)
    counts = torch.bincount(chosen.reshape(-1), minlength=weights.shape[0]).tolist()
    parts = rows.reshape(-1, x.shape[-1])[order].split(counts)
    made = torch.cat([F.linear(part, weight) for part, weight in zip(parts, weights.unbind())])
    return made[torch.argsort(order)].reshape(*chosen.shape, -1)


def saved_on_host(tensors):
    """What is saved for the backward pass goes to host memory, but for weights, which stay where they are."""
    weights = {tensor.data_ptr() for tensor in tensors if isinstance(tensor, nn.Parameter)}

    def pack(tensor):
        return tensor if tensor.data_ptr() in weights else to_host(tensor)

    return saved_tensors_hooks(pack, from_host)


def to_host(tensor):
    copy = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=DEVICE.type == "cuda")
    return "on the host", copy.copy_(tensor)


def from_host(packed):
    return packed[1].to(DEVICE) if isinstance(packed, tuple) else packed


TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
         "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


def read_safetensors(path):
    with open(path, "rb") as file:
        head = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in head.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            tensors[name] = torch.frombuffer(data[first:last], dtype=TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def write_safetensors(path, tensors):
    head, at, kinds = {}, 0, {dtype: name for name, dtype in TYPES.items()}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.element_size()
        head[name] = {"dtype": kinds[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for tensor in tensors.values():
            file.write(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())


def load_weights(model, path):
    stored = read_safetensors(path)
    with torch.no_grad():
        for name, parameter in model.by_name().items():
            if name not in stored:
                raise SystemExit(f"{path}: has no tensor \"{name}\"; its tensors are {', '.join(sorted(stored))}")
            parameter.copy_(stored[name])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="safetensors with a tensor for each input, a row a sample")
    parser.add_argument("--weights", help="safetensors to start from; default: random")
    parser.add_argument("--save", help="write the trained weights to this file")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    world = int(os.environ.get("WORLD_SIZE", 1))
    if world != REPLICAS:
        raise SystemExit(f"the plan has {REPLICAS} replicas: start it with torchrun --nproc-per-node {REPLICAS}")
    if world > 1:
        # Some builds of PyTorch 2 (Debian 13's) cannot do what they take for the default.
        os.environ.setdefault("USE_LIBUV", "0")
        torch.distributed.init_process_group("nccl" if DEVICE.type == "cuda" else "gloo")
    model = Model()
    if options.weights:
        load_weights(model, options.weights)
    trained = prepare(model)
    optimizer = make_optimizer(trained.parameters(), options.lr)
    data = read_safetensors(options.data)
    for name in INPUTS:
        if name not in data:
            raise SystemExit(f"{options.data}: has no tensor \"{name}\"; its tensors are {', '.join(sorted(data))}")
    rows = data[INPUTS[0]].shape[0]
    for step in range(options.steps):
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device=DEVICE)
        for part in range(ACCUMULATION):
            first = step * BATCH + (RANK * ACCUMULATION + part) * MICRO_BATCH
            picked = torch.arange(first, first + MICRO_BATCH) % rows
            batch = [data[name][picked].to(DEVICE) for name in INPUTS]
            with exchange(trained, last=part + 1 == ACCUMULATION):
                loss = trained(*batch) / ACCUMULATION
                loss.backward()
            total += loss.detach()
        if CLIP_NORM > 0:
            clip(trained)
        optimizer.step()
        finish(trained)
        if world > 1:
            torch.distributed.all_reduce(total)
            total /= world
        if RANK == 0:
            print(json.dumps({"step": step + 1, "loss": float(total)}), flush=True)
    if options.save:
        weights = whole_weights(model)
        if RANK == 0:
            write_safetensors(options.save, weights)
    if world > 1:
        torch.distributed.barrier()
        if DEVICE.type == "cuda":
            torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        # Gloo's threads may want Python's lock to give tensors back while it is held by who waits for them to end
        # (PyTorch 1.13). All is written: nothing is left to do.
        sys.stdout.flush()
        os._exit(0)
