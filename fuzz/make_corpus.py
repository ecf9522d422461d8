#!/usr/bin/env python3
"""Writes the seed corpus of the ONNX fuzz targets: fuzz/corpus/onnx/ and fuzz/corpus/wire/.

Needs torch and onnx. Weights are tiny; each file is a whole model that windlass reads.
Usage: make_corpus.py [FOLDER]
"""

import io
import sys
from pathlib import Path

import numpy
import onnx
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "corpus"
UNCHECKED = 99  # an IR version that the installed ONNX library does not know: its checker is skipped


def write(target, name, model):
    path = FOLDER / target / f"{name}.onnx"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model if isinstance(model, bytes) else model.SerializeToString())


# --- what PyTorch exports


class GptBlock(nn.Module):
    def __init__(self, width=8, heads=2, vocabulary=11, positions=16):
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(positions, width)
        self.first_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.second_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("mask", torch.tril(torch.ones(positions, positions)).bool())

    def forward(self, ids):
        batch, length = ids.shape
        x = self.tokens(ids) + self.places(torch.arange(length))
        q, k, v = self.qkv(self.first_norm(x)).chunk(3, -1)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = q @ k.transpose(-1, -2) / q.size(-1) ** 0.5
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.project(mixed)
        x = x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))
        return self.head(x)


class ConvNet(nn.Module):
    def __init__(self, ceil_mode=True):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(4)
        self.pool = nn.MaxPool2d(2, ceil_mode=ceil_mode)
        self.depthwise = nn.Conv2d(4, 4, 3, padding=1, groups=4)
        self.squeeze = nn.AdaptiveAvgPool2d(1)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = self.pool(torch.relu(self.norm(self.conv(x))))
        x = nn.functional.silu(self.depthwise(x)) + x
        return self.head(self.dropout(self.squeeze(x).flatten(1)))


class Recurrent(nn.Module):
    def __init__(self, cell):
        super().__init__()
        self.cell = cell(3, 4, batch_first=True, bidirectional=cell is nn.LSTM)
        self.head = nn.Linear(8 if cell is nn.LSTM else 4, 2)

    def forward(self, x):
        return self.head(self.cell(x)[0])


def export(name, module, example, training=False, opset=13, axes=None):
    stream = io.BytesIO()
    mode = torch.onnx.TrainingMode
    torch.onnx.export(
        module.train(training), example, stream, opset_version=opset,
        training=mode.TRAINING if training else mode.EVAL, do_constant_folding=not training,
        input_names=["x"], output_names=["y"], dynamic_axes=axes)
    model = onnx.load_from_string(stream.getvalue())
    for node in model.graph.node:
        node.doc_string = ""
    write("onnx", name, model)


def export_all():
    torch.manual_seed(0)
    mlp = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    export("torch_mlp", mlp, torch.randn(2, 3), axes={"x": {0: "batch"}})
    image = torch.randn(1, 3, 12, 12)
    export("torch_convnet_inference", ConvNet(), image)
    export("torch_convnet_training", ConvNet(), image, training=True)
    export("torch_convnet_opset9", ConvNet(False), image, opset=9, axes={"x": {2: "h", 3: "w"}})
    ids = torch.randint(0, 11, (1, 6))
    open_axes = {"x": {0: "batch", 1: "sequence"}}
    export("torch_gpt_block_open", GptBlock(), ids, axes=open_axes)
    export("torch_gpt_block_fixed", GptBlock(), ids, opset=17)
    sequence = torch.randn(2, 5, 3)
    export("torch_lstm", Recurrent(nn.LSTM), sequence)
    export("torch_gru_open", Recurrent(nn.GRU), sequence, axes={"x": {0: "batch", 1: "steps"}})


# --- one operator a file, between a weight and an output

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def floats(*shape):
    count = int(numpy.prod(shape))
    return (numpy.arange(count, dtype=numpy.float32) % 7 / 7 - 0.4).reshape(shape)


def ints(*values):
    return numpy.array(values, dtype=numpy.int64)


def one_op(op_type, inputs, outputs=1, opset=17, name=None, **attributes):
    """A model of one operator between two products with a weight; a loss is the output itself.
    `inputs`: shapes of inputs x, or arrays; None is an absent one."""
    nodes, initializers, graph_inputs, names = [], [], [], []
    for i, given in enumerate(inputs):
        if given is None:
            names.append("")
        elif isinstance(given, tuple):
            graph_inputs.append(helper.make_tensor_value_info(f"x{i}", FLOAT, given))
            names.append(f"x{i}")
        else:
            initializers.append(numpy_helper.from_array(given, f"w{i}"))
            names.append(f"w{i}")
    initializers.append(numpy_helper.from_array(floats(1), "scale.weight"))
    if inputs and isinstance(inputs[0], tuple):
        nodes.append(helper.make_node("Mul", [names[0], "scale.weight"], ["scaled"]))
        names[0] = "scaled"
    results = [f"y{i}" for i in range(outputs)]
    nodes.append(helper.make_node(op_type, names, results, **attributes))
    if not op_type.endswith("Loss"):
        for i, result in enumerate(results):
            nodes.append(helper.make_node("Cast", [result], [f"float{i}"], to=FLOAT))
            nodes.append(helper.make_node("Mul", [f"float{i}", "scale.weight"], [f"z{i}"]))
        results = [f"z{i}" for i in range(outputs)]
    graph = helper.make_graph(nodes, "one", graph_inputs,
                              [onnx.ValueInfoProto(name=result) for result in results], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)],
                              ir_version=UNCHECKED)
    write("onnx", "op_" + (name or op_type.lower()), model)


def all_operators():
    image, matrix, vector = (2, 4, 6, 6), (2, 3), (4,)
    for op_type in ["Abs", "Celu", "Clip", "Elu", "Erf", "Exp", "HardSigmoid", "HardSwish", "LeakyRelu",
                    "Neg", "Reciprocal", "Selu", "Sigmoid", "Softplus", "Softsign", "Tanh"]:
        one_op(op_type, [matrix])
    for op_type in ["Add", "Div", "Max", "Pow", "PRelu"]:
        one_op(op_type, [matrix, floats(3)])
    for op_type in ["Floor", "IsNaN", "Not", "Sign"]:
        kind = numpy.array([True, False]) if op_type == "Not" else floats(2)
        one_op(op_type, [kind])
    true_false = numpy.array([True, False])
    for op_type in ["And", "Xor"]:
        one_op(op_type, [true_false, true_false])
    for op_type in ["Greater", "LessOrEqual", "Min", "Sum"]:
        one_op(op_type, [matrix, floats(2, 1)])
    one_op("Gelu", [matrix], opset=20, approximate="tanh")
    one_op("Mish", [matrix], opset=18)
    one_op("CastLike", [matrix, floats(1).astype(numpy.float16)])
    one_op("RandomUniformLike", [matrix])
    one_op("ReduceLogSum", [matrix], axes=[0])
    one_op("GlobalMaxPool", [image])
    one_op("RotaryEmbedding", [(1, 2, 3, 4), floats(5, 2), floats(5, 2), ints(0, 1, 2).reshape(1, 3)],
           opset=23)
    one_op("RotaryEmbedding", [(1, 3, 8), floats(1, 3, 2), floats(1, 3, 2)], opset=23,
           name="rotaryembedding_flat", num_heads=2, interleaved=1)
    one_op("Mean", [matrix, floats(2, 3), floats(1)])
    one_op("Mod", [ints(7, -7, 5), ints(3, 3, -2)])
    one_op("Clip", [matrix, floats(1)[0], floats(2)[1]], name="clip_bounds")
    one_op("Where", [numpy.array([True, False, True]), floats(2, 3), floats(1)])
    one_op("Cast", [matrix], to=TensorProto.FLOAT16)
    one_op("Dropout", [matrix, floats(1)[0] + 0.6, numpy.array(True)])
    one_op("MatMul", [(2, 3, 4), floats(4, 5)])
    one_op("Gemm", [matrix, floats(4, 3), floats(4)], transB=1)
    one_op("Gemm", [matrix, floats(3, 4), floats(2, 4)], name="gemm_scaled", alpha=0.5, beta=2.0)
    one_op("Einsum", [(2, 3, 4), floats(2, 4, 5)], equation="bij,bjk->bik")
    for op_type in ["ReduceMax", "ReduceLogSumExp", "ReduceL2", "ReduceProd"]:
        one_op(op_type, [(2, 3, 4)], axes=[1, -1], keepdims=0)
    one_op("ReduceSum", [(2, 3, 4), ints(1)])
    one_op("ArgMax", [floats(2, 3)], axis=1)
    one_op("CumSum", [matrix, ints(1)])
    one_op("RandomNormal", [], shape=[2, 3])
    one_op("Bernoulli", [floats(2, 3)])
    one_op("Conv", [image, floats(3, 4, 3, 3), floats(3)], pads=[1, 1, 1, 1], strides=[2, 2])
    one_op("Conv", [image, floats(4, 1, 3, 3)], name="conv_groups", group=4, dilations=[2, 2],
           auto_pad="SAME_UPPER")
    one_op("Conv", [(2, 4, 9), floats(3, 4, 3)], name="conv_1d")
    one_op("ConvTranspose", [image, floats(4, 3, 3, 3)], strides=[2, 2], output_padding=[1, 1])
    one_op("ConvTranspose", [image, floats(4, 3, 2, 2)], name="convtranspose_shape", strides=[2, 2],
           output_shape=[12, 12])
    one_op("MaxPool", [image], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], ceil_mode=1)
    one_op("AveragePool", [image], kernel_shape=[2, 2], auto_pad="SAME_LOWER", count_include_pad=1)
    one_op("GlobalAveragePool", [image])
    one_op("LRN", [image], size=3)
    one_op("Resize", [image, None, floats(4) * 0 + [1, 1, 2, 2]], mode="linear")
    one_op("Resize", [image, None, None, ints(2, 4, 9, 9)], name="resize_sizes",
           coordinate_transformation_mode="align_corners")
    one_op("Upsample", [image, numpy.array([1, 1, 2, 2], numpy.float32)], opset=9)
    one_op("BatchNormalization", [image, floats(4), floats(4), floats(4), abs(floats(4))])
    one_op("BatchNormalization", [image, floats(4), floats(4), floats(4), abs(floats(4))], 3,
           name="batchnormalization_training", training_mode=1)
    one_op("InstanceNormalization", [image, floats(4), floats(4)])
    one_op("LayerNormalization", [(2, 3, 4), floats(4), floats(4)])
    one_op("GroupNormalization", [image, floats(2), floats(2)], opset=18, num_groups=2)
    one_op("RMSNormalization", [(2, 3, 4), floats(4)], opset=23)
    one_op("LpNormalization", [matrix])
    one_op("Softmax", [(2, 3, 4)], opset=11, axis=1)
    one_op("LogSoftmax", [(2, 3, 4)])
    heads = (2, 4, 3, 8)
    one_op("Attention", [heads, floats(2, 2, 5, 8), floats(2, 2, 5, 6)], opset=23,
           is_causal=1)
    one_op("Attention", [(2, 3, 8), floats(2, 5, 8), floats(2, 5, 8), floats(3, 5)], opset=23,
           name="attention_flat", q_num_heads=2, kv_num_heads=2)
    one_op("LSTM", [(5, 2, 3), floats(1, 16, 3), floats(1, 16, 4), floats(1, 32)], 3, hidden_size=4)
    one_op("GRU", [(5, 2, 3), floats(2, 12, 3), floats(2, 12, 4)], 2, hidden_size=4,
           direction="bidirectional", linear_before_reset=1)
    one_op("SoftmaxCrossEntropyLoss", [(2, 3), ints(1, 2)], 2)
    one_op("Flatten", [image], axis=2)
    one_op("Reshape", [image, ints(0, -1, 3)])
    one_op("Squeeze", [(2, 1, 3, 1), ints(1)])
    one_op("Unsqueeze", [matrix, ints(0, -1)])
    one_op("Transpose", [(2, 3, 4)], perm=[2, 0, 1])
    one_op("Slice", [(4, 6), ints(3, 1), ints(-9223372036854775808, 9223372036854775807), ints(0, 1),
                     ints(-1, 2)])
    one_op("Slice", [(4, 6)], name="slice_opset9", opset=9, starts=[1], ends=[3], axes=[1])
    one_op("Concat", [matrix, floats(2, 2)], axis=1)
    one_op("Split", [(2, 6), ints(2, 4)], 2, axis=1)
    one_op("Split", [(2, 6)], 3, name="split_even", axis=1)
    one_op("Pad", [matrix, ints(0, 1, 0, 1), floats(1)[0]], mode="reflect")
    one_op("Pad", [matrix, ints(0, -1, 2, 1)], name="pad_constant")
    one_op("Expand", [(3, 1), ints(2, 1, 4)])
    one_op("Tile", [matrix, ints(2, 3)])
    one_op("DepthToSpace", [(1, 8, 2, 2)], blocksize=2, mode="CRD")
    one_op("SpaceToDepth", [(1, 2, 4, 4)], blocksize=2)
    one_op("Gather", [(4, 3), ints(1)], axis=1)
    one_op("Gather", [floats(4, 3), ints(1, -1, 0)], name="gather_weight")
    one_op("GatherElements", [floats(2, 2), numpy.array([[0, 1], [-1, 0]])], axis=1)
    one_op("GatherND", [ints(1, 2, 3, 4).reshape(2, 2), numpy.array([[0, 1], [1, 0]])])
    one_op("ScatterND", [ints(1, 2, 3), numpy.array([[2], [0]]), ints(9, 8)])
    one_op("ScatterElements", [ints(1, 2, 3), ints(0, -1), ints(7, 8)])
    one_op("Shape", [(2, 3, 4)], opset=15, start=1, end=-1)
    one_op("Size", [matrix])
    one_op("ConstantOfShape", [ints(2, 3)], value=numpy_helper.from_array(floats(1)))
    one_op("Range", [ints(1)[0], ints(9)[0], ints(2)[0]])
    one_op("NonZero", [ints(1, 0, 3).reshape(3, 1)])
    one_op("Trilu", [(3, 4), ints(1)[0]], upper=0)
    one_op("Trilu", [ints(*range(9)).reshape(3, 3), ints(-1)[0]], name="trilu_constant")
    one_op("EyeLike", [matrix], k=1)
    one_op("OneHot", [ints(0, 2), ints(3), floats(2)])


# --- structure


def structures():
    value = helper.make_tensor_value_info
    node = helper.make_node

    def model(nodes, inputs, outputs, initializers=(), opset=17, functions=(), ir_version=8, **more):
        graph = helper.make_graph(nodes, "structure", inputs, outputs, initializers, **more)
        opsets = [helper.make_opsetid("", opset)]
        if functions:
            opsets.append(helper.make_opsetid("local", 1))
        return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=ir_version,
                                 producer_name="pytorch")

    x, y = value("x", FLOAT, ["batch", 4]), value("y", FLOAT, ["batch", 4])
    weight = numpy_helper.from_array(floats(4, 4), "dense.weight")

    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    scale = node("LeakyRelu", ["v"], ["r"])
    scale.attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope",
                                               type=onnx.AttributeProto.FLOAT))
    inner = helper.make_function("local", "Inner", ["v"], ["r"], [scale], opsets, ["slope"])
    outer = helper.make_function(
        "local", "Outer", ["a", "b"], ["c"],
        [node("MatMul", ["a", "b"], ["m"]), node("Inner", ["m"], ["c"], domain="local", slope=0.2)],
        opsets)
    calls = [node("Outer", ["x", "dense.weight"], ["h"], domain="local", name="first"),
             node("Outer", ["h", "dense.weight"], ["y"], domain="local", name="second")]
    write("onnx", "functions", model(calls, [x], [y], [weight], functions=[inner, outer]))

    then_graph = helper.make_graph([node("Relu", ["h"], ["t"])], "then", [], [value("t", FLOAT, None)])
    else_graph = helper.make_graph([node("Tanh", ["h"], ["e"])], "else", [], [value("e", FLOAT, None)])
    branch = [node("MatMul", ["x", "dense.weight"], ["h"]), node("Shape", ["x"], ["shape"]),
              node("Size", ["shape"], ["rank"]),
              node("Constant", [], ["two"], value=helper.make_tensor("", INT, [], [2])),
              node("Equal", ["rank", "two"], ["flat"]),
              node("If", ["flat"], ["y"], then_branch=then_graph, else_branch=else_graph)]
    write("onnx", "if_branch", model(branch, [x], [y], [weight]))

    external = TensorProto(name="dense.weight", data_type=FLOAT, dims=[4, 4],
                           data_location=TensorProto.EXTERNAL)
    for key, text in [("location", "weights.bin"), ("offset", "64"), ("length", "64")]:
        external.external_data.add(key=key, value=text)
    dense = [node("MatMul", ["x", "dense.weight"], ["y"])]
    write("onnx", "external_data", model(dense, [x], [y], [external]))

    shapes = [node("Shape", ["x"], ["s"]), node("Gather", ["s", "zero"], ["n"]),
              node("Unsqueeze", ["n", "axes"], ["rows"]),
              node("Concat", ["rows", "minus"], ["target"], axis=0),
              node("MatMul", ["x", "dense.weight"], ["h"]), node("Reshape", ["h", "target"], ["r"]),
              node("ConstantOfShape", ["target_fixed"], ["ones"]), node("Add", ["r", "ones"], ["y"])]
    numbers = [numpy_helper.from_array(array, name)
               for name, array in [("zero", ints(0)[0]), ("axes", ints(0)), ("minus", ints(-1)),
                                   ("target_fixed", ints(1, 4))]]
    write("onnx", "shape_arithmetic", model(shapes, [x], [y], [weight, *numbers]))

    tied = [node("Gather", ["table.weight", "ids"], ["e"]), node("Identity", ["bias.a"], ["bias.b"]),
            node("Add", ["e", "bias.a"], ["f"]), node("Add", ["f", "bias.b"], ["g"]),
            node("MatMul", ["g", "onnx::MatMul_7"], ["y"])]
    table = floats(5, 3)
    write("onnx", "tied_table", model(
        tied, [value("ids", INT, [2, 4])], [value("y", FLOAT, [2, 4, 5])],
        [numpy_helper.from_array(table, "table.weight"),
         numpy_helper.from_array(table.T.copy(), "onnx::MatMul_7"),
         numpy_helper.from_array(floats(3), "bias.a")]))

    lists = TensorProto(name="w", data_type=FLOAT, dims=[4], float_data=[1, 2, 3, 4])
    counts = TensorProto(name="c", data_type=INT, dims=[2], int64_data=[2, -1])
    halves = TensorProto(name="f", data_type=TensorProto.FLOAT16, dims=[2], int32_data=[15360, 16384])
    typed = [node("Mul", ["x", "w"], ["h"]), node("Reshape", ["h", "c"], ["i"]),
             node("Cast", ["f"], ["g"], to=FLOAT), node("Add", ["i", "g"], ["y"])]
    write("onnx", "typed_lists", model(typed, [value("x", FLOAT, [1, 4])], [value("y", FLOAT, [2, 2])],
                                       [lists, counts, halves]))

    losses = [node("MatMul", ["x", "dense.weight"], ["h"]), node("LogSoftmax", ["h"], ["l"], axis=1),
              node("NegativeLogLikelihoodLoss", ["l", "labels"], ["loss"], reduction="mean")]
    write("onnx", "loss_of_its_own", model(losses, [x, value("labels", INT, ["batch"])],
                                           [value("loss", FLOAT, [])], [weight]))

    # For the wire format alone: values of every field, packed and not, cut out and kept.
    wide = TensorProto(name="wide", data_type=INT, dims=[64], int64_data=range(64))
    double = TensorProto(name="double", data_type=TensorProto.DOUBLE, dims=[32], double_data=[0.5] * 32)
    words = TensorProto(name="words", data_type=TensorProto.STRING, dims=[40], string_data=[b"word"] * 40)
    raw = numpy_helper.from_array(floats(16, 80), "raw")
    constant = node("Constant", [], ["k"], value=numpy_helper.from_array(floats(64), "attribute"))
    values = model([constant], [x], [y], [wide, double, words, raw, external])
    write("wire", "values", values)
    write("wire", "functions", model(calls, [x], [y], [weight], functions=[inner, outer]))
    write("wire", "if_branch", model(branch, [x], [y], [weight]))


export_all()
all_operators()
structures()
