# windlass_benchmarks(): every benchmarks/<name>.cpp becomes the executable <name>, built by the target
# `benchmarks` and by nothing else.
function(windlass_benchmarks)
  if(NOT WINDLASS_BENCHMARKS)
    return()
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/benchmarks/*.cpp")
  get_property(libraries GLOBAL PROPERTY WINDLASS_LIBRARIES)
  add_custom_target(benchmarks)
  foreach(source IN LISTS sources)
    get_filename_component(target "${source}" NAME_WE)
    add_executable(${target} EXCLUDE_FROM_ALL "${source}")
    target_link_libraries(${target} PRIVATE
      windlass_options ${libraries} benchmark::benchmark Threads::Threads)
    set_target_properties(${target} PROPERTIES
      RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/benchmarks")
    add_dependencies(benchmarks ${target})
  endforeach()
endfunction()
