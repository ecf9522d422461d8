// Convolution, pooling and resampling: windows over the spatial axes of x [b, c, ...].

#include <algorithm>

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

constexpr std::string_view kSpatialNames[] = {"x", "y", "z"};

std::string spatial_name(size_t axis, size_t count) {
  return std::string(kSpatialNames[count - 1 - axis]);
}

size_t spatial_rank(const Signature& s) {
  const size_t rank = s.shape(0).size();
  if (rank < 3 || rank > 5)
    fail_input("input has shape {}, expected [batch, channel, 1 to 3 spatial axes]",
               format_shape(s.shape(0)));
  return rank - 2;
}

void require_lists(std::initializer_list<const Ints*> lists, size_t count) {
  for (const Ints* list : lists)
    if (list->size() != count)
      fail_input("stride, dilation, kernel and padding lists need {} entries, one has {}", count,
                 list->size());
}

void require_positive(const Ints& values, std::string_view what) {
  for (int64_t value : values)
    if (value < 1) fail_input("{} is {}, expected at least 1", what, format_shape(values));
}

int64_t window_extent(int64_t kernel, int64_t dilation) {
  return checked_add(checked_mul(kernel - 1, dilation), 1);
}

// Output size of a sliding window; `ceil_mode` lets a last window begin inside the input or the
// padding before it, as PyTorch does, even if it is the only one.
int64_t windows(int64_t size, int64_t before, int64_t after, int64_t extent, int64_t stride,
                bool ceil_mode) {
  if (before < 0 || after < 0) fail_input("padding {} and {} must not be negative", before, after);
  const int64_t room = checked_add(checked_add(size, before), after) - extent;
  if (ceil_mode && room < 0 && -room < stride) return 1;
  if (room < 0)
    fail_input("a window of {} does not fit an axis of {} padded by {} and {}", extent, size,
               before, after);
  int64_t count = room / stride + 1;
  if (ceil_mode && room % stride != 0 && checked_mul(count, stride) < size + before) ++count;
  return count;
}

struct ConvChannels {
  int64_t in, out;
};

ConvChannels conv_channels(const Signature& s) {
  const auto& a = s.as<ConvAttrs>();
  const Shape& w = s.shape(1);
  if (a.transposed) return {w[0], checked_mul(w[1], a.groups)};
  return {checked_mul(w[1], a.groups), w[0]};
}

std::vector<TensorType> infer_conv(const Signature& s) {
  const auto& a = s.as<ConvAttrs>();
  require_float(s, 0);
  require_float(s, 1);
  const size_t n = spatial_rank(s);
  require_rank(s, 1, n + 2);
  require_lists({&a.stride, &a.dilation, &a.pad_begin, &a.pad_end}, n);
  if (a.transposed) require_lists({&a.output_padding}, n);
  require_positive(a.stride, "stride");
  require_positive(a.dilation, "dilation");
  if (a.groups < 1) fail_input("groups is {}, expected at least 1", a.groups);
  const Shape& x = s.shape(0);
  const Shape& w = s.shape(1);
  const ConvChannels channels = conv_channels(s);
  if (x[1] != channels.in)
    fail_input("input {} has {} channels, the weight {} with {} groups expects {}", format_shape(x),
               x[1], format_shape(w), a.groups, channels.in);
  if (channels.out % a.groups != 0 || channels.in % a.groups != 0)
    fail_input("{} input and {} output channels do not divide into {} groups", channels.in,
               channels.out, a.groups);
  if (s.has_input(2)) require_shape(s, 2, {channels.out}, "bias");
  Shape shape = {x[0], channels.out};
  for (size_t i = 0; i < n; ++i) {
    if (w[i + 2] < 1) fail_input("kernel of weight {} is empty", format_shape(w));
    const int64_t extent = window_extent(w[i + 2], a.dilation[i]);
    if (a.transposed) {
      const int64_t padding = checked_add(a.pad_begin[i], a.pad_end[i]);
      const int64_t full = checked_add(checked_mul(x[i + 2] - 1, a.stride[i]),
                                       checked_add(extent, a.output_padding[i]));
      const int64_t size = checked_sub(full, padding);
      if (size < 1) fail_input("output axis {} would have size {}", i + 2, size);
      shape.push_back(size);
    } else {
      shape.push_back(windows(x[i + 2], a.pad_begin[i], a.pad_end[i], extent, a.stride[i], false));
    }
  }
  return {{s.input(0).dtype, shape}};
}

// Channels of a grouped convolution can be split by whole groups only, so there is a group loop and
// no channel loops; otherwise output channels are free and input channels reduced. The transposed
// convolution is the same nest seen from its input: a window over the output.
LoopNest conv_loops(const Signature& s) {
  const auto& a = s.as<ConvAttrs>();
  const size_t n = spatial_rank(s);
  const Shape& x = s.shape(0);
  const Shape& w = s.shape(1);
  const ConvChannels channels = conv_channels(s);
  LoopNest nest;
  nest.loops.push_back({.name = "batch", .size = x[0]});
  OperandMap input = {{.loop = 0}}, output = {{.loop = 0}}, weight(n + 2);
  AxisMap bias;
  if (a.groups > 1) {
    nest.loops.push_back({.name = "group", .size = a.groups});
    const int64_t in = channels.in / a.groups, out = channels.out / a.groups;
    input.push_back({.loop = 1, .stride = in, .window = in});
    output.push_back({.loop = 1, .stride = out, .window = out});
    bias = output.back();
    weight[0] = a.transposed ? input.back() : output.back();
  } else {
    nest.loops.push_back({.name = "out", .size = channels.out});
    nest.loops.push_back({.name = "in", .size = channels.in, .role = LoopRole::Reduced});
    input.push_back({.loop = 2});
    output.push_back({.loop = 1});
    bias = output.back();
    weight[0].loop = a.transposed ? 2 : 1;
    weight[1].loop = a.transposed ? 1 : 2;
  }
  for (size_t i = 0; i < n; ++i) {
    const auto loop = static_cast<int32_t>(nest.loops.size());
    if (a.transposed) {
      // Splitting the input axis leaves overlapping sums in the output: not worth supporting.
      nest.loops.push_back({.name = spatial_name(i, n), .size = x[i + 2], .role = LoopRole::Whole});
      input.push_back({.loop = loop});
      output.push_back({});
    } else {
      nest.loops.push_back({.name = spatial_name(i, n), .size = s.outputs[0].shape[i + 2]});
      input.push_back({.loop = loop,
                       .stride = a.stride[i],
                       .offset = -a.pad_begin[i],
                       .window = window_extent(w[i + 2], a.dilation[i])});
      output.push_back({.loop = loop});
    }
  }
  nest.inputs = {input, weight};
  if (s.inputs.size() > 2) nest.inputs.push_back(s.has_input(2) ? OperandMap{bias} : OperandMap{});
  nest.outputs = {output};
  return nest;
}

// Padding before and after the windows `out` of an axis, of which `in` is here. Windows in blocks
// have none.
void cut_padding(const AxisPart& out, const AxisPart& in, int64_t stride, int64_t extent,
                 int64_t& before, int64_t& after) {
  if (out.blocks > 1) return;
  const int64_t begin = out.range.begin * stride - before;
  const int64_t end = (out.range.end - 1) * stride - before + extent;
  const bool nothing = in.range.size() == 0;  // windows that lie in the padding altogether
  before = nothing ? end - begin : in.range.begin - begin;
  after = nothing ? 0 : std::max<int64_t>(0, end - in.range.end);
}

void conv_piece(const Signature& whole, OpPiece& piece) {
  auto& a = std::get<ConvAttrs>(piece.attrs);
  const Region &in = piece.input_regions[0], &out = piece.output_regions[0];
  if (a.groups > 1) a.groups = a.groups * in[1].count() / in[1].size;
  if (a.transposed) return;
  for (size_t i = 0; i < a.stride.size(); ++i)
    if (!out[i + 2].whole())
      cut_padding(out[i + 2], in[i + 2], a.stride[i],
                  window_extent(whole.shape(1)[i + 2], a.dilation[i]), a.pad_begin[i],
                  a.pad_end[i]);
}

Arithmetic conv_arithmetic(const Signature& s) {
  const auto& a = s.as<ConvAttrs>();
  const TensorType& y = s.outputs[0];
  const double per_group =
      static_cast<double>(a.transposed ? conv_channels(s).out : conv_channels(s).in) /
      static_cast<double>(a.groups);
  double kernel = 1;
  for (size_t i = 2; i < s.shape(1).size(); ++i) kernel *= static_cast<double>(s.shape(1)[i]);
  const double points = a.transposed ? elements(s.input(0)) : elements(y);
  return {points * per_group * kernel, s.has_input(2) ? elements(y) : 0};
}

GradientRule conv_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(s.inputs.size());
  rule.inputs[0] = rule.inputs[1] = GradientSource::Computed;
  if (s.has_input(2)) rule.inputs[2] = GradientSource::Computed;
  if (wanted[1]) rule.saved.push_back(saved_input(0));
  if (wanted[0]) rule.saved.push_back(saved_input(1));
  const Arithmetic forward = conv_arithmetic(s);
  rule.arithmetic.multiply_adds =
      forward.multiply_adds * ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0));
  rule.arithmetic.pointwise = forward.pointwise;
  return rule;
}

std::vector<TensorType> infer_pool(const Signature& s) {
  const auto& a = s.as<PoolAttrs>();
  require_float(s, 0);
  const size_t n = spatial_rank(s);
  require_lists({&a.kernel, &a.stride, &a.dilation, &a.pad_begin, &a.pad_end}, n);
  require_positive(a.kernel, "kernel");
  require_positive(a.stride, "stride");
  require_positive(a.dilation, "dilation");
  element_count(a.kernel);  // refuses sizes that overflow
  const Shape& x = s.shape(0);
  Shape shape = {x[0], x[1]};
  for (size_t i = 0; i < n; ++i) {
    const int64_t extent = window_extent(a.kernel[i], a.dilation[i]);
    if (a.pad_begin[i] < 0 || a.pad_end[i] < 0 || a.pad_begin[i] >= extent ||
        a.pad_end[i] >= extent)
      fail_input("padding {} and {} must not be negative nor reach the window of {}",
                 a.pad_begin[i], a.pad_end[i], extent);
    shape.push_back(
        windows(x[i + 2], a.pad_begin[i], a.pad_end[i], extent, a.stride[i], a.ceil_mode));
  }
  return {{s.input(0).dtype, shape}};
}

// Max pooling keeps where the maximum was inside its window: one byte up to 256 places.
std::vector<TensorType> pool_auxiliaries(const Signature& s) {
  const auto& a = s.as<PoolAttrs>();
  if (a.fn != PoolFn::Max) return {};
  return {{checked_product(a.kernel) <= 256 ? DType::U8 : DType::I32, s.outputs[0].shape}};
}

LoopNest pool_loops(const Signature& s) {
  const auto& a = s.as<PoolAttrs>();
  const size_t n = spatial_rank(s);
  LoopNest nest;
  nest.loops = {{.name = "batch", .size = s.shape(0)[0]},
                {.name = "channel", .size = s.shape(0)[1]}};
  OperandMap input = aligned_map(2);
  for (size_t i = 0; i < n; ++i) {
    nest.loops.push_back({.name = spatial_name(i, n), .size = s.outputs[0].shape[i + 2]});
    input.push_back({.loop = static_cast<int32_t>(i + 2),
                     .stride = a.stride[i],
                     .offset = -a.pad_begin[i],
                     .window = window_extent(a.kernel[i], a.dilation[i])});
  }
  nest.inputs = {input};
  nest.outputs = {aligned_map(n + 2)};
  if (a.fn == PoolFn::Max) nest.auxiliaries = {aligned_map(n + 2)};
  return nest;
}

// All padding becomes explicit, that beyond the padding of the whole op too, which windows of
// ceil_mode reach.
void pool_piece(const Signature&, OpPiece& piece) {
  auto& a = std::get<PoolAttrs>(piece.attrs);
  const Region &in = piece.input_regions[0], &out = piece.output_regions[0];
  if (std::all_of(out.begin() + 2, out.end(), [](const AxisPart& part) { return part.whole(); }))
    return;
  a.ceil_mode = false;
  piece.facts.uncounted_padding.assign(a.kernel.size(), 0);
  for (size_t i = 0; i < a.kernel.size(); ++i) {
    const int64_t extent = window_extent(a.kernel[i], a.dilation[i]);
    const int64_t end = (out[i + 2].range.end - 1) * a.stride[i] - a.pad_begin[i] + extent;
    const int64_t counted = in[i + 2].size + a.pad_end[i];
    if (out[i + 2].blocks == 1)
      piece.facts.uncounted_padding[i] = std::max<int64_t>(0, end - counted);
    cut_padding(out[i + 2], in[i + 2], a.stride[i], extent, a.pad_begin[i], a.pad_end[i]);
  }
}

Arithmetic pool_arithmetic(const Signature& s) {
  return pointwise(elements(s.outputs[0]) *
                   static_cast<double>(checked_product(s.as<PoolAttrs>().kernel)));
}

GradientRule pool_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule;
  rule.inputs = {GradientSource::Computed};
  if (s.as<PoolAttrs>().fn == PoolFn::Max) rule.saved = {saved_aux(0)};
  rule.arithmetic = pool_arithmetic(s);
  return rule;
}

std::vector<TensorType> infer_resize(const Signature& s) {
  const auto& a = s.as<ResizeAttrs>();
  require_float(s, 0);
  const size_t n = spatial_rank(s);
  require_lists({&a.size}, n);
  require_positive(a.size, "size");
  Shape shape = {s.shape(0)[0], s.shape(0)[1]};
  shape.insert(shape.end(), a.size.begin(), a.size.end());
  if (element_count(s.shape(0)) == 0) fail_input("input {} is empty", format_shape(s.shape(0)));
  return {{s.input(0).dtype, shape}};
}

LoopNest resize_loops(const Signature& s) {
  const size_t n = spatial_rank(s);
  LoopNest nest;
  nest.loops = {{.name = "batch", .size = s.shape(0)[0]},
                {.name = "channel", .size = s.shape(0)[1]}};
  OperandMap input = aligned_map(2), output = aligned_map(2);
  input.resize(n + 2);
  output.resize(n + 2);
  nest.inputs = {input};
  nest.outputs = {output};
  return nest;
}

Arithmetic resize_arithmetic(const Signature& s) {
  const double taps = s.as<ResizeAttrs>().mode == ResizeMode::Nearest
                          ? 1
                          : static_cast<double>(int64_t{1} << spatial_rank(s));
  return pointwise(elements(s.outputs[0]) * taps);
}

GradientRule resize_gradient(const Signature& s, const std::vector<bool>&) {
  return {.inputs = {GradientSource::Computed}, .saved = {}, .arithmetic = resize_arithmetic(s)};
}

}  // namespace

std::vector<OpInfo> convolution_ops() {
  return {
      {.kind = OpKind::Conv,
       .name = "Conv",
       .family = OpFamily::Convolution,
       .min_inputs = 2,
       .max_inputs = 3,
       .bias = 2,
       .infer = infer_conv,
       .loops = conv_loops,
       .piece = conv_piece,
       .arithmetic = conv_arithmetic,
       .gradient = conv_gradient},
      {.kind = OpKind::Pool,
       .name = "Pool",
       .family = OpFamily::Pooling,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_pool,
       .auxiliaries = pool_auxiliaries,
       .loops = pool_loops,
       .piece = pool_piece,
       .arithmetic = pool_arithmetic,
       .gradient = pool_gradient},
      {.kind = OpKind::Resize,
       .name = "Resize",
       .family = OpFamily::Pooling,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_resize,
       .loops = resize_loops,
       .arithmetic = resize_arithmetic,
       .gradient = resize_gradient},
  };
}

}  // namespace windlass::ops
