#include "windlass/runtime/kernels/errors.h"

#include <exception>
#include <new>

#include <c10/util/Exception.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

void rethrow_within(std::string_view where) {
  try {
    throw;
  } catch (const Error& error) {
    throw error.within(where);
  } catch (const c10::OutOfMemoryError& error) {
    fail(ErrorKind::OutOfMemory, "{}: {}", where, first_line(error.what_without_backtrace()));
  } catch (const c10::Error& error) {
    fail(ErrorKind::Runtime, "{}: libtorch: {}", where, first_line(error.what_without_backtrace()));
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::OutOfMemory, "{}: the system has no memory to give", where);
  } catch (const std::exception& error) {
    fail(ErrorKind::Runtime, "{}: {}", where, first_line(error.what()));
  }
}

}  // namespace windlass
