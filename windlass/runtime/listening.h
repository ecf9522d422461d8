// Who may reach a port that a library listens on.
#pragma once

#include <string>
#include <vector>

namespace windlass {

// Throws Error{Runtime} naming the first that is no name or number of an address, as far as this
// host knows. Where the system cannot tell for now, it is asked again for so many seconds: names of
// hosts that start together may come later than these.
void check_addresses(const std::vector<std::string>& names, double seconds);

// The store of c10d listens on all addresses of its host, and has no setting for that. From now on
// the port of this process takes only what is sent to one of the addresses (names or numbers of
// IPv4 and IPv6): anything else is dropped by the system before a connection comes about. Throws
// Error{Runtime} if nobody listens there, an address is not known, or the system refuses.
void accept_only_at(int port, const std::vector<std::string>& addresses);

// Ends connections to the port that came about at another address, before it was kept to these.
void end_connections_elsewhere(int port, const std::vector<std::string>& addresses);

}  // namespace windlass
