#include "windlass/runtime/slots.h"

#include <ATen/ops/empty.h>
#include <c10/core/TensorImpl.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

void Slots::allocate(int32_t id) {
  const Slot& slot = program_.slots[static_cast<size_t>(id)];
  set(id, device(slot.memory).allocate(slot.bytes));
}

void Slots::adopt(int32_t id, at::Tensor tensor) {
  const Slot& slot = program_.slots[static_cast<size_t>(id)];
  const c10::Storage& storage = tensor.storage();
  ensure(storage.use_count() == 1 && tensor.storage_offset() == 0 && tensor.is_contiguous(),
         "a result shares its memory with another tensor");
  ensure(storage.nbytes() == 0 || device(slot.memory).owns(tensor),
         "a result lies in memory that nobody counts for its buffer");
  set(id, std::move(tensor));
}

std::span<std::byte> Slots::bytes(int32_t id) const {
  const at::Tensor& held = held_[static_cast<size_t>(id)];
  ensure(held.defined(), "a buffer is read that is not alive");
  return {static_cast<std::byte*>(held.data_ptr()), held.nbytes()};
}

at::Tensor Slots::view(int32_t id, int64_t offset, const TensorType& type) const {
  const std::span<std::byte> memory = bytes(id);
  ensure(offset + byte_size(type).value <= static_cast<int64_t>(memory.size()),
         "a buffer is smaller than the tensor in it");
  const int64_t each = element_bytes(type.dtype);
  ensure(offset % each == 0, "a tensor does not begin at a multiple of its elements");
  // A tensor of its own over the slot's storage: whoever looks sees that the bytes are shared.
  const at::Tensor& held = held_[static_cast<size_t>(id)];
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(held.storage()), c10::DispatchKeySet(c10::DispatchKey::CPU),
      caffe2::TypeMeta::fromScalarType(scalar_type(type.dtype)));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset / each);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(type.shape);
  return tensor;
}

Slots::Ends Slots::ends(const FlatCopy& copy) const {
  const auto from = bytes(copy.from), to = bytes(copy.to);
  ensure(copy.from_at + copy.bytes <= static_cast<int64_t>(from.size()) &&
             copy.to_at + copy.bytes <= static_cast<int64_t>(to.size()),
         "a copy does not fit where it goes");
  return {from.data() + copy.from_at, to.data() + copy.to_at};
}

at::Tensor Slots::operand(const Operand& operand) const {
  if (!operand.present()) return {};
  if (operand.cuts.empty()) return view(operand.slot, operand.offset, operand.type);
  const DType dtype = operand.type.dtype;
  at::Tensor made;
  const std::byte* from = bytes(operand.slot).data() + operand.offset;
  for (const OperandCut& cut : operand.cuts) {
    at::Tensor part = at::empty(cut.type.shape, scalar_type(dtype));
    copy_overlap(cut.overlap, dtype, from, static_cast<std::byte*>(part.data_ptr()));
    made = std::move(part);
    from = static_cast<const std::byte*>(made.data_ptr());
  }
  return made;
}

}  // namespace windlass
