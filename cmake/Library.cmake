# windlass_unity(<target> [TOGETHER] <file>...)
#
# With CMAKE_UNITY_BUILD, 24 neighbours of one folder are compiled as one: what they include is read
# once. Names in their unnamed namespaces must differ; with TOGETHER in all folders, which are then taken for one.
# Files with options of their own stay alone.
function(windlass_unity target)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TOGETHER" "" "")
  set_target_properties(${target} PROPERTIES UNITY_BUILD_MODE GROUP)
  foreach(source IN LISTS arg_UNPARSED_ARGUMENTS)
    set(folder "${target}")
    if(NOT arg_TOGETHER)
      get_filename_component(folder "${source}" DIRECTORY)
      string(REPLACE "${CMAKE_SOURCE_DIR}/" "" folder "${folder}")
      string(MAKE_C_IDENTIFIER "${folder}" folder)
    endif()
    math(EXPR number "${count_${folder}} + 0")
    math(EXPR group "${number} / 24")
    math(EXPR count_${folder} "${number} + 1")
    set_source_files_properties("${source}" PROPERTIES UNITY_GROUP "${folder}_${group}")
  endforeach()
endfunction()

# windlass_library(<folder> [TOGETHER] [DEPENDS <folder>...] [PUBLIC <package>...] [PRIVATE <package>...]
#                  [TEST_SOURCES <file>...])
#
# Makes library windlass_<folder> of windlass/<folder>/**.cpp and, of the *_test.cpp among them, the
# test program windlass_<folder>_test. main.cpp belongs to neither. TEST_SOURCES are files of other
# folders that the tests share. TOGETHER: it has many small folders (see windlass_unity).
function(windlass_library folder)
  cmake_parse_arguments(PARSE_ARGV 1 arg "TOGETHER" "" "DEPENDS;PUBLIC;PRIVATE;TEST_SOURCES")
  set(together "")
  if(arg_TOGETHER)
    set(together TOGETHER)
  endif()
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/windlass/${folder}/*.cpp")
  list(FILTER sources EXCLUDE REGEX "/main\\.cpp$")
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_test\\.cpp$")
  list(FILTER tests INCLUDE REGEX "_test\\.cpp$")
  list(TRANSFORM arg_DEPENDS PREPEND windlass_)

  add_library(windlass_${folder} STATIC ${sources})
  windlass_unity(windlass_${folder} ${together} ${sources})
  # Search spends its time in these two. Of many files together g++ would inline less than of each by itself.
  if(folder MATCHES "^(task|sim)$" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(windlass_${folder} PRIVATE --param=inline-unit-growth=200
                           $<$<CONFIG:RelWithDebInfo>:-O3>)
  endif()
  # Flags, files and texts: half the time to compile, and nobody waits for them.
  if(folder MATCHES "^(machine|report|export|serve|data|run|sweep|cli)$")
    target_compile_options(windlass_${folder} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
    # A sanitizer's tests spend no time there, but for machine in what it shares with folders behind it.
    if(WINDLASS_SANITIZE AND NOT folder STREQUAL "machine")
      target_compile_options(windlass_${folder} PRIVATE -O0)
    endif()
  endif()
  target_link_libraries(windlass_${folder}
    PUBLIC ${arg_DEPENDS} ${arg_PUBLIC}
    PRIVATE windlass_options ${arg_PRIVATE})
  set_property(GLOBAL APPEND PROPERTY WINDLASS_LIBRARIES windlass_${folder})
  set(whole "")
  foreach(library IN LISTS arg_DEPENDS)
    get_target_property(more ${library} WINDLASS_WHOLE)
    list(APPEND whole ${more})
  endforeach()
  list(APPEND whole windlass_${folder})
  list(REMOVE_DUPLICATES whole)
  set_target_properties(windlass_${folder} PROPERTIES WINDLASS_WHOLE "${whole}")

  windlass_test_program(windlass_${folder}_test ${together} PREFIX ${folder}
    SOURCES ${tests} ${arg_TEST_SOURCES} LIBRARIES windlass_${folder})
endfunction()

# windlass_link_first(<target> <library>...): links the libraries and all that they depend on before the target's own
# objects. Of a template or an inline function that both have, the linker takes the first: the optimised one,
# not that of tests, which nobody optimises.
function(windlass_link_first target)
  set(all "")
  foreach(library IN LISTS ARGN)
    if(library MATCHES "^windlass_")
      get_target_property(whole ${library} WINDLASS_WHOLE)
      list(APPEND all ${whole})
    endif()
  endforeach()
  list(REMOVE_DUPLICATES all)
  list(TRANSFORM all REPLACE "(.+)" "$<TARGET_FILE:\\1>")
  target_link_options(${target} PRIVATE "LINKER:--whole-archive" ${all} "LINKER:--no-whole-archive")
endfunction()

# The program, at the top of the build folder. It has all of every library but the runtime, and shows it
# to the runtime library: the two have one copy of each function and of each type of exception.
function(windlass_program)
  get_property(libraries GLOBAL PROPERTY WINDLASS_LIBRARIES)
  list(REMOVE_ITEM libraries windlass_runtime)
  list(TRANSFORM libraries REPLACE "(.+)" "$<TARGET_OBJECTS:\\1>" OUTPUT_VARIABLE objects)
  add_executable(windlass "${CMAKE_SOURCE_DIR}/windlass/cli/main.cpp" ${objects})
  target_link_libraries(windlass PRIVATE windlass_cli windlass_options)
  set(exports "${CMAKE_SOURCE_DIR}/cmake/exports.txt")
  target_link_options(windlass PRIVATE "LINKER:--dynamic-list=${exports}")
  set_target_properties(windlass PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}" LINK_DEPENDS "${exports}")
  if(TARGET windlass_run_test)
    add_dependencies(windlass_run_test windlass)
  endif()
endfunction()

# libwindlass_runtime.so, beside the program: the runtime with libtorch, opened by the program when it
# runs kernels (windlass/run/runtime.h). Whatever else it calls it finds in the program.
function(windlass_runtime_library)
  add_library(windlass_runtime_library MODULE $<TARGET_OBJECTS:windlass_runtime>)
  target_link_libraries(windlass_runtime_library PRIVATE windlass_torch windlass_options)
  # What is missing is noticed when it is opened, not in the midst of a run.
  target_link_options(windlass_runtime_library PRIVATE "LINKER:-z,now")
  set_target_properties(windlass_runtime_library PROPERTIES
    OUTPUT_NAME windlass_runtime LINKER_LANGUAGE CXX LIBRARY_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}")
  set_target_properties(windlass_runtime PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(windlass_runtime PRIVATE -fno-semantic-interposition)
  # Not needed to link the program, but to run it.
  add_dependencies(windlass windlass_runtime_library)
endfunction()
