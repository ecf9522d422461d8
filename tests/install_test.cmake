# Installs the build folder `build` below `scratch`, moves the tree, and runs the program from / with
# nothing in its environment but options of sanitizers: it plans and trains. Run by CTest.
file(REMOVE_RECURSE "${scratch}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${scratch}/first"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${scratch}/first" "${scratch}/moved")
set(program "${scratch}/moved/bin/windlass")

function(run)
  execute_process(COMMAND env -i "ASAN_OPTIONS=$ENV{ASAN_OPTIONS}" "${program}" ${ARGN} WORKING_DIRECTORY /
    OUTPUT_VARIABLE text ERROR_VARIABLE text RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "windlass ${ARGN}: exit code ${result}\n${text}")
  endif()
endfunction()

run(--version)
run(inspect gpt2)
run(plan gpt2:layers=1,hidden=32,heads=2,vocab=256 --seq 16 --batch 4 --on local --devices 1
  -o "${scratch}/plan.json")
run(train "${scratch}/plan.json" --steps 2
  --data "${scratch}/moved/share/windlass/examples/data/harbour.txt")
file(REMOVE_RECURSE "${scratch}")
