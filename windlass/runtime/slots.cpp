#include "windlass/runtime/slots.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/TensorImpl.h>

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

void Slots::adopt(BufferId buffer, at::Tensor tensor) {
  const c10::Storage& storage = tensor.storage();
  ensure(storage.use_count() == 1 && tensor.storage_offset() == 0 && tensor.is_contiguous(),
         "a result shares its memory with another tensor");
  if (storage.nbytes() > 0) {
    ensure(storage.data_ptr().get_deleter() == &Arena::release &&
               &Arena::owner(storage.data_ptr().get()) == arenas_[tasks_[buffer].memory.index()],
           "a result lies in memory that nobody counts for its buffer");
  }
  slots_[buffer.index()] = std::move(tensor);
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
  const int64_t each = element_bytes(type.dtype);
  ensure(offset % each == 0, "a tensor does not begin at a multiple of its elements");
  // A tensor of its own over the slot's storage: whoever looks sees that the bytes are shared.
  const at::Tensor& slot = slots_[buffer.index()];
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(slot.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU),
      caffe2::TypeMeta::fromScalarType(scalar_type(type.dtype)));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset / each);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(type.shape);
  return tensor;
}

}  // namespace windlass
