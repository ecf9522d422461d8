# windlass_test_program(<target> [TOGETHER] PREFIX <name> SOURCES <file>... LIBRARIES <library>...)
#
# A GoogleTest program; each suite becomes the CTest test <name>.<Suite>: one process, for loading
# libtorch takes longer than most cases. Suites whose name ends in Slow become a test a case,
# <name>.<Suite>.<Case>, with the label `slow` (cmake/Suites.cmake). The target `test_programs` builds all
# programs. Sources find checkout and program by windlass/base/test_places.h. No sources, no target.
function(windlass_test_program target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TOGETHER" "PREFIX" "SOURCES;LIBRARIES")
  if(NOT WINDLASS_TESTS OR NOT arg_SOURCES)
    return()
  endif()
  add_executable(${target} ${arg_SOURCES})
  if(NOT TARGET test_programs)
    add_custom_target(test_programs)
  endif()
  add_dependencies(test_programs ${target})
  if(arg_TOGETHER)
    windlass_unity(${target} TOGETHER ${arg_SOURCES})
  else()
    windlass_unity(${target} ${arg_SOURCES})
  endif()
  target_link_libraries(${target} PRIVATE
    windlass_options ${arg_LIBRARIES} GTest::gmock GTest::gtest_main)
  # What is tested is optimised; to optimise the tests themselves takes longer than they run.
  target_compile_options(${target} PRIVATE -O0)
  target_link_options(${target} PRIVATE ${WINDLASS_TEST_LINK})
  windlass_link_first(${target} ${arg_LIBRARIES})
  windlass_test_places()
  target_link_libraries(${target} PRIVATE windlass_test_places)
  if(WINDLASS_SANITIZE)
    target_compile_definitions(${target} PRIVATE WINDLASS_SANITIZED)
  endif()
  set(suites "${CMAKE_BINARY_DIR}/${target}_suites.cmake")
  file(GENERATE OUTPUT "${suites}" CONTENT "set(program \"$<TARGET_FILE:${target}>\")
set(prefix \"${arg_PREFIX}\")
set(sanitized \"${WINDLASS_SANITIZE}\")
include(\"${CMAKE_SOURCE_DIR}/cmake/Suites.cmake\")
")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES "${suites}")
endfunction()

# The library of windlass/base/test_places.h, once.
function(windlass_test_places)
  if(TARGET windlass_test_places)
    return()
  endif()
  set(places "${CMAKE_BINARY_DIR}/generated/test_places.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/test_places.cpp.in" "${places}.in" @ONLY)
  file(GENERATE OUTPUT "${places}" INPUT "${places}.in")
  add_library(windlass_test_places STATIC "${places}")
  target_link_libraries(windlass_test_places PRIVATE windlass_options)
endfunction()

# The tests that cross folders. tests/*_test.cpp: linked with every library but the runtime, for loading libtorch
# takes longer than most of them. tests/runs/*_test.cpp: those that run kernels in their own process.
function(windlass_cross_tests)
  get_property(libraries GLOBAL PROPERTY WINDLASS_LIBRARIES)
  file(GLOB runs CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/runs/*_test.cpp")
  windlass_test_program(windlass_runs_tests PREFIX runs SOURCES ${runs} LIBRARIES ${libraries})
  list(REMOVE_ITEM libraries windlass_runtime)
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/*_test.cpp")
  windlass_test_program(windlass_tests PREFIX tests SOURCES ${sources} LIBRARIES ${libraries})
  if(TARGET windlass_tests)
    add_dependencies(windlass_tests windlass)
  endif()
endfunction()

# What runs on several threads, in a program of its own for the thread sanitizer: the preset tsan
# builds nothing else. Libtorch and OpenMP are not instrumented, so that the sanitizer takes what a
# parallel loop hands over for races: kernels have one thread in these tests, and the preset leaves
# out the test about parallel loops.
function(windlass_thread_tests)
  if(NOT WINDLASS_SANITIZE STREQUAL "thread")
    return()
  endif()
  windlass_test_program(windlass_threads_test PREFIX threads
    SOURCES windlass/runtime/memory/arena_test.cpp
            windlass/runtime/memory_order_test.cpp
            windlass/runtime/executor_test.cpp
            windlass/runtime/failures_test.cpp
            windlass/runtime/device_evaluation_test.cpp
            windlass/runtime/device_test.cpp
            windlass/runtime/many_devices_test.cpp
            windlass/runtime/many_ranks_test.cpp
            windlass/runtime/step_rows_test.cpp
            windlass/runtime/trainer_test.cpp
            windlass/runtime/watchdog_test.cpp
            windlass/graph/reference/op_cases_test.cpp
            windlass/graph/reference/op_cases_dense_test.cpp
            windlass/report/validation_test.cpp
    LIBRARIES windlass_report windlass_runtime)
endfunction()

# tests/tools/<name>.cpp: windlass_<name>, a program that tests in Python call.
function(windlass_test_tool name)
  if(NOT WINDLASS_TESTS)
    return()
  endif()
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "LIBRARIES")
  add_executable(windlass_${name} "${CMAKE_SOURCE_DIR}/tests/tools/${name}.cpp")
  target_link_libraries(windlass_${name} PRIVATE windlass_options ${arg_LIBRARIES})
  target_compile_options(windlass_${name} PRIVATE -O0)
  target_link_options(windlass_${name} PRIVATE ${WINDLASS_TEST_LINK})
  windlass_link_first(windlass_${name} ${arg_LIBRARIES})
endfunction()

# tests/*_test.py: checks against PyTorch and ONNX in Python. Exit code 77 means skipped.
function(windlass_python_tests)
  if(NOT WINDLASS_TESTS OR NOT PeerPython_FOUND)
    return()
  endif()
  file(GLOB scripts CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/tests/*_test.py")
  set(environment "WINDLASS_PROGRAM=$<TARGET_FILE:windlass>" PYTHONDONTWRITEBYTECODE=1
    OMP_WAIT_POLICY=passive "XDG_CACHE_HOME=${CMAKE_BINARY_DIR}/test_cache"
    "WINDLASS_RUN_REFERENCE=$<TARGET_FILE:windlass_run_reference>"
    "WINDLASS_RUN_TRAINING=$<TARGET_FILE:windlass_run_training>")
  if(DEFINED WINDLASS_DATA)
    list(APPEND environment "WINDLASS_DATA=${WINDLASS_DATA}")
  endif()
  foreach(script IN LISTS scripts)
    get_filename_component(name "${script}" NAME_WE)
    add_test(NAME python.${name} COMMAND "${PEER_PYTHON}" "${script}")
    set_tests_properties(python.${name} PROPERTIES
      COST 1000 LABELS python TIMEOUT 3600 SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
  endforeach()
  if(WINDLASS_NETWORKS GREATER 0)
    add_test(NAME python.networks COMMAND "${PEER_PYTHON}"
      "${CMAKE_SOURCE_DIR}/tests/network_fuzz.py" --seed 1000 --count ${WINDLASS_NETWORKS})
    set_tests_properties(python.networks PROPERTIES COST 2000 LABELS "python;slow"
      TIMEOUT 36000 SKIP_RETURN_CODE 77 ENVIRONMENT "${environment}")
  endif()
endfunction()
