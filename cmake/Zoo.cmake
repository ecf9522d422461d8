# windlass_zoo_table(<target>): adds zoo_families(), which lists the family of every file in
# windlass/model/zoo/ in alphabetic order. The source is rewritten only when the list changes.
function(windlass_zoo_table target)
  file(GLOB files CONFIGURE_DEPENDS RELATIVE "${CMAKE_SOURCE_DIR}/windlass/model/zoo"
    "${CMAKE_SOURCE_DIR}/windlass/model/zoo/*.cpp")
  list(FILTER files EXCLUDE REGEX "_test\\.cpp$")
  list(SORT files)

  set(ZOO_DECLARATIONS "")
  set(ZOO_CALLS "")
  foreach(file IN LISTS files)
    get_filename_component(name "${file}" NAME_WE)
    string(APPEND ZOO_DECLARATIONS "ZooFamily zoo_${name}();\n")
    string(APPEND ZOO_CALLS "  families.push_back(zoo_${name}());\n")
  endforeach()

  set(table "${CMAKE_BINARY_DIR}/generated/zoo_table.cpp")
  configure_file("${CMAKE_SOURCE_DIR}/cmake/zoo_table.cpp.in" "${table}" @ONLY)
  target_sources(${target} PRIVATE "${table}")
endfunction()
