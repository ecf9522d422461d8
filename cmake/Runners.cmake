# windlass_runner_table(<target>): adds runner_presets(), which holds every file of runners/ as text, so
# that the program needs no files beside it.
function(windlass_runner_table target)
  file(GLOB files CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/runners/*.json")
  list(SORT files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})

  set(RUNNER_ENTRIES "")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME_WLE)
    file(READ "${file}" text)
    string(APPEND RUNNER_ENTRIES "      {\"${name}\", R\"runner(${text})runner\"},\n")
  endforeach()

  set(table "${CMAKE_BINARY_DIR}/generated/runner_table.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/runner_table.cpp.in" "${table}" @ONLY)
  target_sources(${target} PRIVATE "${table}")
endfunction()
