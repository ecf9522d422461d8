# windlass_validation_table(<target>): adds validation_texts(), which holds every file of validation/ as text,
# so that the program needs no files beside it.
function(windlass_validation_table target)
  file(GLOB files CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/validation/*.json")
  list(SORT files)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${files})

  set(VALIDATION_ENTRIES "")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME_WLE)
    file(READ "${file}" text)
    string(APPEND VALIDATION_ENTRIES "      {\"${name}\", R\"table(${text})table\"},\n")
  endforeach()

  set(table "${CMAKE_BINARY_DIR}/generated/validation_table.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/validation_table.cpp.in" "${table}" @ONLY)
  target_sources(${target} PRIVATE "${table}")
endfunction()
