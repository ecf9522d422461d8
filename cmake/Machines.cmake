# windlass_machine_table(<target>): adds machine_presets(), which holds every file of machines/ as text, so
# that the program needs no files beside it.
function(windlass_machine_table target)
  file(GLOB files CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/machines/*.json")
  list(SORT files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})

  set(MACHINE_ENTRIES "")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME_WLE)
    file(READ "${file}" text)
    string(APPEND MACHINE_ENTRIES "      {\"${name}\", R\"machine(${text})machine\"},\n")
  endforeach()

  set(table "${CMAKE_BINARY_DIR}/generated/machine_table.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/machine_table.cpp.in" "${table}" @ONLY)
  target_sources(${target} PRIVATE "${table}")
endfunction()
