// A page for a browser on this host, and searches that the page asks for. Whatever a client sends
// is hostile: sizes, times and numbers are bounded, searches are processes of their own that end
// with their connection, and pages of other origins get no answer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "windlass/serve/child.h"

namespace windlass {

struct PageServerOptions {
  std::string host = "127.0.0.1";  // that it listens on
  int port = 0;                    // 0: any
  std::string page;                // HTML
  std::string token;               // that the page sends along: only who can read the page knows it
  std::string program;             // that answers; see Child
  int searches = 2;                // at a time
  // From the body of a request to the process that answers. Throws Error{Input} for the client.
  std::function<ChildCommand(std::string_view body)> command;
};

// GET / is the page. POST /plan {session, ...} answers with lines of JSON as the process writes
// them, and empty lines between. A second one of a session ends the first.
class PageServer {
 public:
  // Throws Error{Input} if it cannot listen there.
  explicit PageServer(PageServerOptions options);
  ~PageServer();
  PageServer(const PageServer&) = delete;
  PageServer& operator=(const PageServer&) = delete;

  int port() const;
  std::string address() const;  // http://127.0.0.1:8080/
  void run();                   // until stop()
  void stop();                  // from another thread

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

// Whether a name stands for this host alone: what a server listens on by default.
bool is_loopback(std::string_view host);

}  // namespace windlass
