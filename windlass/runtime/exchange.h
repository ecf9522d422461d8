// Exchange: what crosses from one device to another is carried out behind this seam. Inside of a
// process the memories of all devices are at hand.
#pragma once

#include "windlass/runtime/program.h"
#include "windlass/runtime/slots.h"

namespace windlass {

class DeviceExchange {
 public:
  virtual ~DeviceExchange() = default;

  // What the task has to move between devices. The slots it writes to are allocated. Returns when
  // all of it is there. Sums are in the order of the members, in fp32 where the type has 16 bits:
  // the same bits whatever the arrival.
  virtual void run(const ProgramTask& task) = 0;
};

// Between the devices of one process.
class LocalExchange final : public DeviceExchange {
 public:
  explicit LocalExchange(Slots& slots) : slots_(slots) {}
  void run(const ProgramTask& task) override;

 private:
  void receive(const Receive& receive);
  void receive_wide(const Receive& receive);
  void sum(const TermSum& sum);
  void copy(const FlatCopy& copy);
  void merge(const StatisticsMerge& merge);

  Slots& slots_;
};

}  // namespace windlass
