# windlass_script_frame(<target>): adds torch_script_frame(), which holds windlass/export/script_frame.py, so
# that the program needs no files beside it.
function(windlass_script_frame target)
  set(file "${CMAKE_SOURCE_DIR}/windlass/export/script_frame.py")
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${file}")
  file(READ "${file}" SCRIPT_FRAME)
  set(source "${CMAKE_BINARY_DIR}/generated/script_frame.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/script_frame.cpp.in" "${source}" @ONLY)
  target_sources(${target} PRIVATE "${source}")
endfunction()
