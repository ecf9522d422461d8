import json, struct, torch

def save_safetensors(path, **tensors):
    head, data = {}, b""
    for name, tensor in tensors.items():
        raw = tensor.contiguous().numpy().tobytes()
        kind = {torch.float32: "F32", torch.int64: "I64"}[tensor.dtype]
        head[name] = {"dtype": kind, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(head).encode()
    open(path, "wb").write(struct.pack("<Q", len(head)) + head + data)

if __name__ == "__main__":  # not where another script takes save_safetensors from here
    torch.manual_seed(1)
    digit = torch.randint(0, 10, (512,))
    image = 0.3 * torch.randn(512, 1, 28, 28)
    for sample, label in enumerate(digit):
        image[sample, 0, :, 2 * label:2 * label + 3] += 1  # a bar whose place says which digit it is
    save_safetensors("digits.safetensors", image=image, labels=digit)
