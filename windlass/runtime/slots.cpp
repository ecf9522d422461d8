#include "windlass/runtime/slots.h"

#include <ATen/ops/from_blob.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

void Slots::allocate(BufferId buffer) {
  const int64_t size = tasks_[buffer].bytes.value;
  void* block = size == 0
                    ? nullptr
                    : arenas_[tasks_[buffer].memory.index()]->allocate(static_cast<size_t>(size));
  slots_[buffer.index()] = at::from_blob(block, {size}, &Arena::release, at::kByte);
}

std::span<std::byte> Slots::bytes(BufferId buffer) const {
  const at::Tensor& slot = slots_[buffer.index()];
  ensure(slot.defined(), "a buffer is read that is not alive");
  return {static_cast<std::byte*>(slot.data_ptr()), slot.nbytes()};
}

at::Tensor Slots::view(BufferId buffer, const TensorType& type) const {
  return part(buffer, 0, type);
}

at::Tensor Slots::part(BufferId buffer, int64_t offset, const TensorType& type) const {
  const std::span<std::byte> memory = bytes(buffer);
  ensure(offset + byte_size(type).value <= static_cast<int64_t>(memory.size()),
         "a buffer is smaller than the tensor in it");
  return at::from_blob(memory.data() + offset, type.shape, scalar_type(type.dtype));
}

}  // namespace windlass
