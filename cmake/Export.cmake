# windlass_script_frame(<target>): adds torch_script_frame(), torch_script_replicas() and torch_script_shards(), which
# hold windlass/export/script_*.py, so that the program needs no files beside it.
function(windlass_script_frame target)
  foreach(part frame replicas shards)
    set(file "${CMAKE_SOURCE_DIR}/windlass/export/script_${part}.py")
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
    string(TOUPPER "SCRIPT_${part}" variable)
    file(READ "${file}" ${variable})
  endforeach()
  set(source "${CMAKE_BINARY_DIR}/generated/script_frame.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/script_frame.cpp.in" "${source}" @ONLY)
  target_sources(${target} PRIVATE "${source}")
endfunction()
