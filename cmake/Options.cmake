# Build options, and the interface target that carries flags to every target of the project.

option(WINDLASS_WERROR "Treat warnings as errors" OFF)
option(WINDLASS_TESTS "Build the tests" ON)
option(WINDLASS_BENCHMARKS "Build benchmarks/" OFF)
option(WINDLASS_FUZZ "Build fuzz/ with libFuzzer (clang only) instead of the replay driver" OFF)
set(WINDLASS_NETWORKS 0 CACHE STRING
  "Generated networks of the slow test python.networks; 0: only the sample of python.network_sample_test")
set(WINDLASS_SANITIZE "" CACHE STRING "Sanitizers, comma-separated: address,undefined or thread")

set(WINDLASS_SANITIZE_READERS "" CACHE STRING
  "Checks of these sanitizers that only what reads files has (libraries of fuzz targets)")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/lib")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# Checkouts anywhere share what was compiled: paths are those from the top of the checkout.
find_program(WINDLASS_CCACHE ccache)
if(WINDLASS_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env "CCACHE_BASEDIR=${CMAKE_SOURCE_DIR}"
    CCACHE_NOHASHDIR=1 "${WINDLASS_CCACHE}")
endif()

add_library(windlass_options INTERFACE)
target_include_directories(windlass_options INTERFACE "${CMAKE_SOURCE_DIR}")
target_compile_options(windlass_options INTERFACE "-ffile-prefix-map=${CMAKE_SOURCE_DIR}/=")
target_compile_options(windlass_options INTERFACE -Wall -Wextra -Wpedantic -Wconversion -Wshadow)
if(WINDLASS_WERROR)
  target_compile_options(windlass_options INTERFACE -Werror)
endif()

if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # Part of -Wconversion in clang but not in g++. A loop that is not vectorized is slower, not wrong.
  target_compile_options(windlass_options INTERFACE -Wno-sign-conversion -Wno-pass-failed)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 reports overlapping copies inside std::string operator+.
  target_compile_options(windlass_options INTERFACE -Wno-restrict)
elseif(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Reports references into what a function was given whenever some other argument is a temporary.
  target_compile_options(windlass_options INTERFACE -Wno-dangling-reference)
endif()

if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Sources that are compiled together look like headers to g++. It need not tidy up its memory before it has a
  # GB: a twentieth of the time.
  target_compile_options(windlass_options INTERFACE -Wno-subobject-linkage --param=ggc-min-heapsize=1000000)
endif()

# A faster linker, where it is installed: for tests, and for all programs of a sanitizer's tree.
find_program(WINDLASS_LLD ld.lld)
set(WINDLASS_TEST_LINK "")
if(WINDLASS_LLD)
  set(WINDLASS_TEST_LINK -fuse-ld=lld)
endif()

if(WINDLASS_FUZZ AND NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  message(FATAL_ERROR "WINDLASS_FUZZ needs clang++ (libFuzzer); found ${CMAKE_CXX_COMPILER}")
endif()
if(WINDLASS_SANITIZE)
  set(flags "-fsanitize=${WINDLASS_SANITIZE}" -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_compile_options(windlass_options INTERFACE ${flags})
  target_link_options(windlass_options INTERFACE ${flags} ${WINDLASS_TEST_LINK})
  if(WINDLASS_SANITIZE_READERS)
    target_compile_options(windlass_options INTERFACE
      "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:WINDLASS_READS_FILES>>>:-fno-sanitize=${WINDLASS_SANITIZE_READERS}>")
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Instrumentation confuses g++'s flow analysis; the release build keeps this warning.
    target_compile_options(windlass_options INTERFACE -Wno-maybe-uninitialized)
  endif()
endif()
