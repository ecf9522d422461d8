# Installs the build folder `build` below `scratch`, moves the tree, and runs the program from / with
# nothing in its environment but options of sanitizers: it plans and trains. Run by CTest.
file(REMOVE_RECURSE "${scratch}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${build}" --prefix "${scratch}/first"
  OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${scratch}/first" "${scratch}/moved")
set(program "${scratch}/moved/bin/windlass")

function(run)
  execute_process(COMMAND env -i OMP_WAIT_POLICY=passive "ASAN_OPTIONS=$ENV{ASAN_OPTIONS}" "${program}" ${ARGN} WORKING_DIRECTORY /
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

# What a shell looks for.
foreach(file share/man/man1/windlass-plan.1 share/bash-completion/completions/windlass
    share/zsh/vendor-completions/_windlass share/fish/vendor_completions.d/windlass.fish
    share/doc/windlass/README.md)
  if(NOT EXISTS "${scratch}/moved/${file}")
    message(FATAL_ERROR "${file} was not installed")
  endif()
endforeach()

# The example of the library, built as somebody else would: with find_package(windlass) and nothing of this tree.
if(NOT sanitized)
  execute_process(COMMAND "${CMAKE_COMMAND}" -S "${scratch}/moved/share/windlass/examples/library" -B "${scratch}/example"
    "-DCMAKE_PREFIX_PATH=${scratch}/moved" -DCMAKE_BUILD_TYPE=Debug "-DCMAKE_CXX_COMPILER=${compiler}"
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${scratch}/example" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${scratch}/example/plan_and_simulate" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
  if(NOT text MATCHES "a step, [0-9]+ tasks")
    message(FATAL_ERROR "the example says: ${text}")
  endif()
endif()
file(REMOVE_RECURSE "${scratch}")
