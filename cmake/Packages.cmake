# System packages. scripts/setup.sh installs them.

find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(CLI11 REQUIRED)

# ONNX's package names protobuf::libprotobuf without finding it, so Protobuf comes first. Its targets
# carry ONNX_ML and ONNX_NAMESPACE, and are imported, so that their headers count as system headers.
find_package(Protobuf REQUIRED)
find_package(ONNX REQUIRED)
add_library(windlass_onnx INTERFACE)
if(TARGET ONNX::onnx)
  target_link_libraries(windlass_onnx INTERFACE ONNX::onnx ONNX::onnx_proto)
else()
  target_link_libraries(windlass_onnx INTERFACE onnx onnx_proto)
endif()

# libtorch: Torch_DIR or CMAKE_PREFIX_PATH (make TORCH=PATH) names another one. The runtime alone
# includes it. ATen divides loops with OpenMP pragmas in its headers.
find_package(Torch REQUIRED)
find_package(OpenMP REQUIRED COMPONENTS CXX)
add_library(windlass_torch INTERFACE)
target_include_directories(windlass_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})
target_link_libraries(windlass_torch INTERFACE ${TORCH_LIBRARIES} OpenMP::OpenMP_CXX)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # In C++20 clang instantiates vectors of IValue where libtorch 1.13 has only declared it.
  target_compile_options(windlass_torch INTERFACE "SHELL:-include ATen/core/ivalue.h")
endif()
# Libtorch's own distributed layer includes Gloo's headers, which are a package of their own.
find_path(GLOO_HEADERS gloo/context.h HINTS ${TORCH_INCLUDE_DIRS})
if(NOT GLOO_HEADERS)
  message(STATUS "Training in several processes is left out: no headers of Gloo (libgloo-dev)")
endif()

# cpp-httplib: its package says how it was built, and headers must be read in the same way.
find_package(PkgConfig REQUIRED)
pkg_check_modules(cpp_httplib REQUIRED IMPORTED_TARGET cpp-httplib)
add_library(windlass_http INTERFACE)
target_link_libraries(windlass_http INTERFACE PkgConfig::cpp_httplib Threads::Threads)
# Headers of newer versions (0.18 in Debian 13) call OpenSSL themselves.
pkg_check_modules(openssl_crypto IMPORTED_TARGET libcrypto)
if(openssl_crypto_FOUND)
  target_link_libraries(windlass_http INTERFACE PkgConfig::openssl_crypto)
endif()

if(WINDLASS_TESTS)
  find_package(GTest REQUIRED)
  find_package(PeerPython)
endif()
if(WINDLASS_BENCHMARKS)
  find_package(benchmark REQUIRED)
endif()
