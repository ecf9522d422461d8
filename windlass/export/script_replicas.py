# Replicas that hold all weights and sum their gradients.


def prepare(model):
    model.to(DEVICE)
    return DistributedDataParallel(model) if REPLICAS > 1 else model


def exchange(model, last):
    """Gradients are exchanged once a step."""
    return contextlib.nullcontext() if last or REPLICAS == 1 else model.no_sync()


def clip(model):
    nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)


def finish(model):
    pass


def whole_weights(model):
    return model.by_name()
