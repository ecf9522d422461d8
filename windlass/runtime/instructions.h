// Instructions that kernels must not use.
#pragma once

namespace windlass {

// oneDNN 2 ends the process with an illegal instruction where a processor has tiles (AMX): 16-bit
// products are kept to what comes before them, unless the user has set DNNL_MAX_CPU_ISA. Before the
// first kernel; once a process is enough.
void avoid_tiles();

}  // namespace windlass
