// Connections that libraries of this process have opened.
#pragma once

#include <set>

namespace windlass {

// Descriptors of this process that wait for events of others (epoll): a library that serves its
// connections by a thread has one of its own.
std::set<int> event_loops();

// From now on the TCP connections that these wait on end with an error when the other end has not
// answered for about `seconds`, whether something is sent or waited for: the systems of both hosts
// do that by themselves, however busy or stopped the programs are. Otherwise a link that breaks
// without a word is waited for for hours. Returns how many there are; other connections of the
// process stay as they are.
int end_dead_connections(const std::set<int>& loops, double seconds);

}  // namespace windlass
