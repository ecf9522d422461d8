#include "windlass/model/onnx/operators.h"

#include <map>

#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

constexpr std::string_view kKnownOnly = "of known values only";

// Limits of operators that are in the import table.
const std::map<std::string_view, std::string_view>& limits() {
  static const std::map<std::string_view, std::string_view> kLimits = {
      {"BatchNormalization", "trained with the statistics of the batch; no spatial = 0"},
      {"Clip", "known bounds"},
      {"Compress", "known condition"},
      {"ConstantOfShape", kKnownOnly},
      {"Dropout", "its mask is read only where it is off"},
      {"Einsum", "no letter twice in one operand"},
      {"GRU", "sigmoid and tanh; sequences of one length"},
      {"GatherND", "known indices"},
      {"If", "known condition"},
      {"LSTM", "sigmoid and tanh, no peepholes; sequences of one length"},
      {"MaxPool", "floating-point numbers; no indices"},
      {"NonZero", kKnownOnly},
      {"OneHot", "known depth and values"},
      {"Pad", "constant, reflect and edge"},
      {"RNN", "tanh, relu and sigmoid; sequences of one length, at most 1024 steps"},
      {"Range", kKnownOnly},
      {"Resize", "no antialiasing, no tf_crop_and_resize"},
      {"Scatter", "as ScatterElements"},
      {"ScatterElements",
       "written or added; computed indices as large as the data but for the axis"},
      {"ScatterND", "known indices, written"},
      {"Shape", kKnownOnly},
      {"Size", kKnownOnly},
      {"TopK", "known number"},
      {"Trilu", "known diagonal"},
  };
  return kLimits;
}

const std::map<std::string_view, std::string_view>& refusals() {
  static const std::map<std::string_view, std::string_view> kAdvice = {
      {"ConvInteger", "export the float model"},
      {"DequantizeLinear", "export the float model"},
      {"DynamicQuantizeLinear", "export the float model"},
      {"GridSample",
       "sample outside of the network, or by hand: gather the neighbours and weigh them"},
      {"Loop",
       "export with fixed lengths so that the loop is unrolled (tracing, not scripting); instead "
       "of "
       "nn.EmbeddingBag look up and reduce: embedding(ids).mean(1)"},
      {"MatMulInteger", "export the float model"},
      {"NonMaxSuppression", "export the network without its post-processing"},
      {"QLinearConv", "export the float model"},
      {"QLinearMatMul", "export the float model"},
      {"QuantizeLinear",
       "export the float model; windlass trains, it does not run quantised models"},
      {"RoiAlign", "export backbone and heads separately"},
      {"Scan", "export with fixed lengths so that the scan is unrolled"},
      {"SequenceAt", "cut with chunk or split, not tensor_split, and return tensors, not lists"},
      {"SequenceConstruct", "return tensors, not lists, from the exported module"},
      {"SequenceInsert", "return tensors, not lists, from the exported module"},
      {"SplitToSequence",
       "cut with chunk or split, not tensor_split, and return tensors, not lists"},
      {"StringNormalizer", "do text processing before the model"},
      {"TfIdfVectorizer", "do text processing before the model"},
  };
  return kAdvice;
}

}  // namespace

std::vector<OnnxOperator> onnx_operators() {
  std::vector<OnnxOperator> list;
  for (const auto& [name, rule] : import_table()) {
    const auto limit = limits().find(name);
    list.push_back({name, limit == limits().end() ? std::string_view() : limit->second});
  }
  return list;
}

std::vector<RefusedOperator> refused_operators() {
  std::vector<RefusedOperator> list;
  for (const auto& [name, advice] : refusals()) list.push_back({name, advice});
  return list;
}

std::string_view advice_for(std::string_view op_type) {
  const auto found = refusals().find(op_type);
  return found == refusals().end() ? "export it decomposed into supported operators"
                                   : found->second;
}

}  // namespace windlass
