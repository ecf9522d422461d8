#include "windlass/model/onnx/wire.h"

#include <cstring>
#include <limits>
#include <sys/mman.h>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/base/rng.h"

namespace windlass {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// `width` pads with empty groups of seven bits.
std::string varint(uint64_t value, size_t width = 1) {
  std::string out;
  while (value >= 0x80 || out.size() + 1 < width) {
    out.push_back(static_cast<char>(0x80 | (value & 0x7f)));
    value >>= 7;
  }
  out.push_back(static_cast<char>(value));
  return out;
}

std::string number(uint32_t field, uint64_t value) { return varint(field << 3) + varint(value); }

std::string bytes(uint32_t field, const std::string& content, size_t width = 1) {
  return varint(field << 3 | 2) + varint(content.size(), width) + content;
}

std::string entry(const std::string& key, const std::string& value) {
  return bytes(13, bytes(1, key) + bytes(2, value));
}

std::string external(int64_t offset, int64_t length, int index) {
  return number(14, 1) + entry("location", "m.onnx") + entry("offset", std::to_string(offset)) +
         entry("length", std::to_string(length)) + entry("windlass_payload", std::to_string(index));
}

// A model of one graph; the graph's fields are `content`.
std::string model(const std::string& content, size_t width = 1) {
  return number(1, 8) + bytes(7, content, width);
}

Skeleton read(const std::string& file, int64_t threshold = 4096) {
  return read_skeleton(bytes_of(file), {.threshold = threshold, .location = "m.onnx"});
}

std::string error_of(const std::string& file) {
  try {
    read(file, 16);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::Input);
    return error.message();
  }
  return "no error";
}

std::string slice(const std::string& file, const Payload& payload) {
  return file.substr(static_cast<size_t>(payload.offset), static_cast<size_t>(payload.length));
}

template <typename T>
std::vector<T> values_of(const std::string& file, const Payload& payload) {
  const std::vector<std::byte> raw = read_payload(bytes_of(file), payload, sizeof(T));
  std::vector<T> values(raw.size() / sizeof(T));
  std::memcpy(values.data(), raw.data(), values.size() * sizeof(T));
  return values;
}

TEST(Wire, CutsOutALargeInitializer) {
  const std::string weights(5000, 'w');
  const std::string head = number(1, 50) + number(1, 25) + number(2, 1) + bytes(8, "fc.weight");
  const std::string node = bytes(1, bytes(1, "x") + bytes(2, "y") + bytes(4, "Relu"));
  const std::string small = bytes(5, bytes(8, "bias") + bytes(9, std::string(100, 'b')));
  const std::string file = model(node + bytes(5, head + bytes(9, weights)) + small);

  const Skeleton skeleton = read(file);
  ASSERT_EQ(skeleton.payloads.size(), 1u);
  const Payload& payload = skeleton.payloads[0];
  EXPECT_EQ(payload.tensor, "fc.weight");
  EXPECT_EQ(payload.field, PayloadField::Raw);
  EXPECT_FALSE(payload.records);
  EXPECT_EQ(slice(file, payload), weights);
  // Both enclosing lengths took two bytes before (over 5000) and still do.
  const std::string cut = bytes(5, head + external(payload.offset, 5000, 0), 2);
  EXPECT_EQ(skeleton.model, model(node + cut + small, 2));
}

TEST(Wire, AFileWithoutLargeValuesIsItsOwnSkeleton) {
  const std::string odd_length = varint(5 << 3 | 2) + varint(2, 4) + number(2, 1);
  const std::string unknown = bytes(999, "future") + varint(17 << 3 | 1) + std::string(8, 'd') +
                              varint(18 << 3 | 5) + std::string(4, 'f');
  const std::string file = model(odd_length + bytes(5, bytes(9, std::string(4096, 'x'))) + unknown);
  const Skeleton skeleton = read(file);
  EXPECT_TRUE(skeleton.payloads.empty());
  EXPECT_EQ(skeleton.model, file);
  EXPECT_EQ(read("").model, "");
}

TEST(Wire, FindsTensorsWhereverOnnxHasThem) {
  const auto tensor = [](const std::string& name) {
    return bytes(8, name) + bytes(9, name + std::string(500, '.'));
  };
  const auto attribute = [](const std::string& content) {
    return bytes(1, bytes(5, bytes(1, "value") + content));
  };
  const auto sparse = [&](const std::string& name) {
    return bytes(1, tensor(name + ".values")) + bytes(2, tensor(name + ".indices"));
  };
  const std::string graph =
      attribute(bytes(5, tensor("t"))) +
      attribute(bytes(10, tensor("tensors.0")) + bytes(10, tensor("tensors.1"))) +
      attribute(bytes(6, bytes(5, tensor("g")))) +
      attribute(bytes(11, attribute(bytes(5, tensor("graphs"))))) +
      attribute(bytes(22, sparse("sparse_tensor"))) +
      attribute(bytes(23, sparse("sparse_tensors"))) + bytes(15, sparse("sparse_initializer")) +
      bytes(5, tensor("initializer"));
  const std::string function = bytes(7, bytes(5, bytes(5, tensor("function"))));
  const std::string defaults = bytes(11, bytes(5, tensor("function_default")));
  const std::string training =
      bytes(1, bytes(5, tensor("initialization"))) + bytes(2, bytes(5, tensor("algorithm")));
  const std::string file = bytes(7, graph) + bytes(25, function + defaults) + bytes(20, training);

  const Skeleton skeleton = read(file, 300);
  std::vector<std::string> names;
  for (const Payload& payload : skeleton.payloads) {
    names.push_back(payload.tensor);
    EXPECT_EQ(slice(file, payload), payload.tensor + std::string(500, '.'));
  }
  EXPECT_EQ(names, (std::vector<std::string>{"t", "tensors.0", "tensors.1", "g", "graphs",
                                             "sparse_tensor.values", "sparse_tensors.values",
                                             "sparse_initializer.values", "initializer", "function",
                                             "function_default", "initialization", "algorithm"}));
  EXPECT_LT(skeleton.model.size(), file.size() / 2);
}

TEST(Wire, ReadsPackedLists) {
  std::string ints, floats, halves;
  for (int i = 0; i < 200; ++i) {
    ints += varint(static_cast<uint64_t>(int64_t{-i}));
    halves += varint(static_cast<uint64_t>(i * 300));
    const float value = 0.5f * static_cast<float>(i);
    floats.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  const std::string file = model(bytes(5, bytes(7, ints)) + bytes(5, bytes(4, floats)) +
                                 bytes(5, bytes(5, halves)) + bytes(5, bytes(11, halves)));
  const Skeleton skeleton = read(file, 256);
  ASSERT_EQ(skeleton.payloads.size(), 4u);
  EXPECT_EQ(skeleton.payloads[0].field, PayloadField::Int64);
  EXPECT_EQ(values_of<int64_t>(file, skeleton.payloads[0])[199], -199);
  EXPECT_EQ(values_of<float>(file, skeleton.payloads[1])[3], 1.5f);
  EXPECT_EQ(values_of<uint16_t>(file, skeleton.payloads[2])[199], 59700);
  EXPECT_EQ(values_of<uint64_t>(file, skeleton.payloads[3])[199], 59700u);
  EXPECT_THROW(read_payload(bytes_of(file), {"x", 0, 8, PayloadField::String, true}, 1), Error);
}

TEST(Wire, ReadsListsInSeveralParts) {
  std::string unpacked, chunks, strings;
  for (int i = 0; i < 300; ++i) unpacked += number(7, i);
  for (int i = 0; i < 30; ++i)
    chunks += bytes(5, varint(i) + varint(2 * i) + varint(3 * i) + varint(1));
  for (int i = 0; i < 60; ++i) strings += bytes(6, "word");
  const std::string scattered =
      bytes(9, std::string(300, '1')) + number(2, 1) + bytes(9, std::string(300, '2'));
  const std::string file =
      model(bytes(5, unpacked) + bytes(5, chunks) + bytes(5, strings) + bytes(5, scattered));
  const Skeleton skeleton = read(file, 128);
  ASSERT_EQ(skeleton.payloads.size(), 3u);
  EXPECT_TRUE(skeleton.payloads[0].records);
  EXPECT_EQ(slice(file, skeleton.payloads[0]), unpacked);
  EXPECT_EQ(values_of<int64_t>(file, skeleton.payloads[0])[299], 299);
  EXPECT_EQ(values_of<int8_t>(file, skeleton.payloads[1])[4 * 29 + 2], 87);
  EXPECT_EQ(slice(file, skeleton.payloads[2]), strings);
  EXPECT_NE(skeleton.model.find(scattered), std::string::npos);
}

TEST(Wire, ReplacesWhatATensorSaidOfItsLocation) {
  // Python's loader of external data leaves data_location = DEFAULT behind.
  const std::string weights(500, 'w');
  const std::string stale = entry("location", "gone.bin");
  const std::string file =
      model(bytes(5, stale + bytes(9, weights) + number(14, 0) + bytes(8, "w")));
  const Skeleton skeleton = read(file, 256);
  ASSERT_EQ(skeleton.payloads.size(), 1u);
  const std::string cut = external(skeleton.payloads[0].offset, 500, 0) + bytes(8, "w");
  EXPECT_EQ(skeleton.model, model(bytes(5, cut, 2), 2));
}

TEST(Wire, LeavesExternalTensorsAlone) {
  const std::string file =
      model(bytes(5, bytes(8, "w") + number(14, 1) + entry("location", "w.bin")));
  EXPECT_EQ(read(file, 0).model, file);
  EXPECT_TRUE(read(file, 0).payloads.empty());
}

TEST(Wire, RefusesContradictoryTensors) {
  const std::string big(300, 'x');
  EXPECT_EQ(error_of(model(bytes(5, bytes(8, "w") + bytes(9, big) + bytes(4, big)))),
            "byte 11: tensor \"w\" has both float_data and raw_data; expected one of them");
  EXPECT_EQ(error_of(model(bytes(5, bytes(8, "w") + bytes(9, big) + number(14, 1)))),
            "byte 11: tensor \"w\" is marked as external data but has raw_data in the file");
  EXPECT_EQ(error_of(model(bytes(5, number(14, 1) + entry("windlass_payload", "0")))),
            "byte 8: external data uses the key windlass_payload, which is reserved");
}

TEST(Wire, RefusesDamagedFiles) {
  EXPECT_EQ(error_of("\x80"),
            "byte 0: a number in ModelProto is cut short; the file is truncated or damaged");
  EXPECT_EQ(
      error_of(varint(7 << 3 | 2) + varint(100) + "short"),
      "byte 0: field 7 of ModelProto claims 100 bytes where 5 are left; the file is cut short or "
      "damaged");
  // A tensor may not reach beyond its graph, even if the file goes on.
  EXPECT_EQ(
      error_of(bytes(7, varint(5 << 3 | 2) + varint(9)) + std::string(50, '\x08')),
      "byte 2: field 5 of GraphProto claims 9 bytes where 0 are left; the file is cut short or "
      "damaged");
  EXPECT_EQ(error_of(varint(7 << 3 | 2) + varint(std::numeric_limits<uint64_t>::max())),
            "byte 0: field 7 of ModelProto claims 18446744073709551615 bytes where 0 are left; the "
            "file is cut short or damaged");
  EXPECT_EQ(error_of(varint(1 << 3) + std::string(10, '\xff') + '\x01'),
            "byte 1: a number in ModelProto exceeds 64 bits; the file is damaged or not ONNX");
  EXPECT_EQ(
      error_of(std::string(1, '\0')),
      "byte 0: ModelProto has a field with the invalid tag 0; the file is damaged or not ONNX");
  EXPECT_EQ(
      error_of(varint(uint64_t{1} << 35)),
      "byte 0: ModelProto has a field with the invalid tag 34359738368; the file is damaged or "
      "not ONNX");
  EXPECT_EQ(error_of(varint(3 << 3 | 3)),
            "byte 0: field 3 of ModelProto has wire type 3; the file is damaged or not ONNX");
}

TEST(Wire, LimitsNesting) {
  // Each level of subgraph is three messages: node, attribute, graph.
  const auto nested = [](int levels) {
    std::string graph = bytes(5, bytes(9, std::string(300, 'x')));
    for (int i = 0; i < levels; ++i) graph = bytes(1, bytes(5, bytes(6, graph)));
    return bytes(7, graph);
  };
  EXPECT_EQ(read(nested(20), 16).payloads.size(), 1u);
  EXPECT_NE(error_of(nested(21)).find("nested more than 64 deep"), std::string::npos);
  EXPECT_NE(error_of(nested(2000)).find("nested more than 64 deep"), std::string::npos);
}

TEST(Wire, ReadsFilesFarBeyondProtobufsLimit) {
  // 40 GB, of which only the first and last page are ever touched.
  const size_t weights = 40'000'000'000;
  const std::string tail = bytes(2, "graph");
  const std::string tensor_head = bytes(8, "w") + varint(9 << 3 | 2) + varint(weights);
  const std::string graph_head =
      varint(5 << 3 | 2) + varint(tensor_head.size() + weights) + tensor_head;
  const std::string head = number(1, 8) + varint(7 << 3 | 2) +
                           varint(graph_head.size() + weights + tail.size()) + graph_head;
  const size_t size = head.size() + weights + tail.size();
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) GTEST_SKIP() << "no address space";
  std::byte* file = static_cast<std::byte*>(memory);
  std::memcpy(file, head.data(), head.size());
  std::memcpy(file + head.size() + weights, tail.data(), tail.size());
  const Skeleton skeleton = read_skeleton({file, size}, {.location = "m.onnx"});
  munmap(memory, size);
  const auto offset = static_cast<int64_t>(head.size());
  ASSERT_EQ(skeleton.payloads.size(), 1u);
  EXPECT_EQ(skeleton.payloads[0],
            (Payload{"w", offset, static_cast<int64_t>(weights), PayloadField::Raw, false}));
  // Lengths took six bytes and now take five, which is what protobuf reads.
  const std::string cut =
      bytes(5, bytes(8, "w") + external(offset, static_cast<int64_t>(weights), 0), 5);
  EXPECT_EQ(skeleton.model, model(cut + tail, 5));
}

TEST(Wire, SurvivesEveryTruncationAndRandomDamage) {
  const std::string tensor = bytes(8, "w") + bytes(9, std::string(200, 'x')) + number(14, 0);
  const std::string node = bytes(5, bytes(6, bytes(5, tensor)) + bytes(5, tensor));
  const std::string file = model(bytes(1, node) + bytes(5, bytes(7, std::string(200, '\1'))) +
                                 bytes(5, tensor + entry("location", "a"))) +
                           bytes(25, bytes(7, node));
  const auto try_read = [](const std::string& damaged) {
    try {
      const Skeleton skeleton = read(damaged, 64);
      EXPECT_LE(skeleton.model.size(), damaged.size());
      int64_t end = 0;
      for (const Payload& payload : skeleton.payloads) {
        EXPECT_GE(payload.offset, end);
        end = payload.offset + payload.length;
        EXPECT_LE(end, static_cast<int64_t>(damaged.size()));
        if (payload.field != PayloadField::String) read_payload(bytes_of(damaged), payload, 2);
      }
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::Input) << error.message();
    }
  };
  ASSERT_EQ(read(file, 128).payloads.size(), 6u);
  for (size_t size = 0; size < file.size(); ++size) try_read(file.substr(0, size));
  Rng rng(1);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = file;
    for (int64_t i = rng.integer(1, 4); i > 0; --i)
      damaged[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(file.size()) - 1))] =
          static_cast<char>(rng.bits());
    try_read(damaged);
  }
}

}  // namespace
}  // namespace windlass
