// Connections that libraries of this process have opened.
#pragma once

namespace windlass {

// From now on the TCP connections of this process end with an error when the other end has not
// answered for about `seconds`, whether something is sent or waited for: the systems of both hosts
// do that by themselves, however busy or stopped the programs are. Otherwise a link that breaks
// without a word is waited for for hours. Those to or from port `but` stay as they are: a thread of
// c10d's store ends the process when its connection breaks.
void end_dead_connections(double seconds, int but);

}  // namespace windlass
